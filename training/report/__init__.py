"""Self-contained pages about a run or a sweep, made from the files of its folder alone."""

from training.report.page import write
from training.report.sweep import write as write_sweep

__all__ = ["write", "write_sweep"]
