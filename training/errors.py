"""The one family of errors that a user is meant to read.

Each says what was wrong, with the value, and what to do next.
"""


class SkypodError(Exception):
    """A failure with a remedy; the command line prints both and exits with `exit_code`."""

    exit_code = 1

    def __init__(self, problem: str, remedy: str = ""):
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}\n  -> {remedy}" if remedy else problem)


class ConfigError(SkypodError):
    """A settings file, recipe or argument that cannot be used as it is."""

    exit_code = 2


class DataError(SkypodError):
    """Mazes, splits, adapters or checkpoints that fail their own checks."""


class SubstrateError(SkypodError):
    """Something outside our code is missing, busy, too small or gone."""

    exit_code = 3


def visible(text: str, keep: str = "") -> str:
    """Text of files and servers for an error: no character of it, but for those of `keep`, acts on a terminal
    or looks like a line of ours."""
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text
    )
