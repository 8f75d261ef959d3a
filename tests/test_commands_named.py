"""Every command that an error or a page tells a reader to call is one that there is."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from cdk_app.command import cli
from rehearsal import deploy
from tests.test_imports import OURS, ROOT, modules

NO_COMMANDS = {"skypod evaluation 1"}
"""Strings that begin like a command and are none."""
_SKYPOD = re.compile(r"(?<![\w@./:-])skypod ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
_MAKE = re.compile(r"`make ([a-z][a-z-]*)[^`]*`")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.S)


def strings(path: Path) -> Iterator[str]:
    """What a module may print: its strings without docstrings, each f-string as one."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare | parts:
            yield node.value


@cache
def mentions() -> list[tuple[str, str]]:
    """(file, text) of all that a reader may take for a command."""
    code = [path for package in OURS for path in modules(package)]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [(path, text) for path in code for text in strings(path) if text not in NO_COMMANDS]
    found += [(path, code) for path in pages for code in _CODE.findall(path.read_text())]
    return [(str(path.relative_to(ROOT)), text) for path, text in found]


def exists(name: str, argument: str | None) -> bool:
    """Whether `skypod name` is a command and, where that is a group, `argument` one of its own."""
    found = cli.get_command(click.Context(cli), name)
    if isinstance(found, click.Group) and argument:
        return argument in found.commands
    return found is not None


def test_every_skypod_command_that_is_named_exists():
    named = [(file, *match.groups()) for file, text in mentions() for match in _SKYPOD.finditer(text)]
    assert any(name == "train" for _, name, _ in named)
    assert [each for each in named if not exists(*each[1:])] == []


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {(file, target) for file, text in mentions() for target in _MAKE.findall(text)}
    assert any(target == "stop" for _, target in named)
    assert [each for each in sorted(named) if each[1] not in targets] == []


def test_stacks_are_deployed_and_destroyed_as_the_rehearsal_does_it():
    """Else a page's command has never been run: with --concurrency alone the CLI refuses on a terminal."""
    for words in (deploy.DEPLOY, deploy.DESTROY):
        whole, begins = f"cdk {' '.join(words)}", f"cdk {words[0]} --all"
        assert any(file == "README.md" and whole in text for file, text in mentions())
        assert [each for each in mentions() if begins in each[1].replace(whole, "")] == []


def test_a_command_of_cdk_that_is_called_unstable_is_named_with_its_switch():
    told = [(file, text) for file, text in mentions() if "cdk diagnose" in text]
    assert told
    assert [each for each in told if "--unstable=diagnose" not in each[1]] == []


def test_a_command_that_is_none_is_found():
    assert exists("train", "follow")
    assert not exists("train", "sideways")
    assert not exists("cluster", "sideways")
    assert _SKYPOD.findall("create it: skypod cluster sideways") == [("cluster", "sideways")]
