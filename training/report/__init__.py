"""One self-contained page about a run, made from the files of its folder alone."""

from training.report.page import write

__all__ = ["write"]
