"""Commands taken apart, and the check that one which is not run could be: its program, verb and options exist."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import sys
import tomllib
import warnings
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any
from unittest import mock

import typer
from packaging.requirements import Requirement
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from marless.app.cli.main import app
from tests.docs.blocks import ROOT

BETWEEN = {"&&", "||", "|", ";", "&"}
SOMEWHERE = "127.0.0.1:7000"
"""What stands for an address that a sentence leaves open."""


class UnknownCommandError(Exception):
    """A command that nobody could run: what it names is not there."""


def lines(text: str) -> list[str]:
    """The commands of a block, with their continuation lines, without comments."""
    whole = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [bare for line in whole if (bare := _without_comment(line))]


def simple(line: str) -> list[list[str]]:
    """The words of each program that a line calls; variables set before it, redirections and $(…) are taken off."""
    lexer = shlex.shlex(re.sub(r"\w+=\$\((.*)\)", r"\1", line), posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in BETWEEN:
            found.append([])
        else:
            found[-1].append(word)
    return [without for words in found if (without := _without_variables(words))]


def check(words: Sequence[str], *, whole: bool) -> None:
    """Raise UnknownCommandError unless this can be called.

    `whole`: its arguments have to be there too, and be possible; a sentence often leaves them out.
    """
    match words:
        case ["marless", *rest] | ["python", "-m", "marless", *rest]:
            _check_marless(rest, whole=whole)
        case ["make", *rest]:
            _check_make(rest)
        case ["python", "-m", module, *rest]:
            _check_module(module.replace("<name>", "coordinator"), rest, whole=whole)
        case ["python", program, *_]:
            _check_paths([program])
        case ["pytest", *places]:
            _check_paths(places)
        case ["pip", "install", *rest]:
            _check_packages(rest)
        case _:
            raise UnknownCommandError(f"{shlex.join(words)}: nothing is known of this program; teach tests/docs it")


def options_of(verb: str) -> set[str]:
    """All options of a verb of `marless`."""
    return {option for parameter in _app().commands[verb].params for option in parameter.opts}


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s+)#(\s.*|$)", "", line).rstrip()


def _without_variables(words: Sequence[str]) -> list[str]:
    first = next((n for n, word in enumerate(words) if not re.match(r"\w+=", word)), len(words))
    return list(words[first:])


@cache
def _app() -> TyperGroup:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def _check_marless(words: Sequence[str], *, whole: bool) -> None:
    command: Any = _app()  # Any: typer keeps the type of its commands private
    words = list(words)
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name = words.pop(0)
        verb = command.get_command(typer.Context(command), name)
        if verb is None:
            raise UnknownCommandError(f"marless has no verb {name}")
        command = verb
    try:
        if whole:
            command.make_context(command.name, words)
        else:
            command.make_parser(typer.Context(command)).parse_args(words)
    except typer.Exit:
        pass  # --help, --version
    except TyperException as error:
        raise UnknownCommandError(f"marless {command.name}: {error}") from None


def _check_make(words: Sequence[str]) -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    for word in words:
        variable, given, _ = word.partition("=")
        there = rf"\$\({variable}\)|\$\(if \$\({variable}\)|\bif \$\({variable}\)" if given else rf"^{word}:"
        if not re.search(there, text, re.MULTILINE):
            raise UnknownCommandError(f"the Makefile has no {word}")


class _ParsedError(Exception):
    """The options could be read, which was all that was wanted."""


def _check_module(module: str, words: Sequence[str], *, whole: bool) -> None:
    """Run it until it has read its options; where they are left out, its peers are set by variables."""
    words = list(words) if whole else [SOMEWHERE if word == "ADDRESS" else word for word in words]
    peers = {} if whole else {f"MARLESS_{name}": SOMEWHERE for name in ("ACTOR_POOL", "LEARNER_POOL", "PARAM_STORE")}
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, *given: object) -> None:
        parse(parser, *given)
        raise _ParsedError

    argv = mock.patch.object(sys, "argv", [module, *words])
    try:
        parsing = mock.patch.object(argparse.ArgumentParser, "parse_args", parsed)
        with argv, parsing, mock.patch.dict(os.environ, peers), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that it was imported before
            runpy.run_module(module, run_name="__main__", alter_sys=False)
    except (_ParsedError, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code:
            raise UnknownCommandError(f"python -m {module} {shlex.join(words)}: its options cannot be read") from None
    except ImportError as error:
        raise UnknownCommandError(f"python -m {module}: {error}") from None


def _check_paths(places: Sequence[str]) -> None:
    for place in places:
        if not (ROOT / place).exists():
            raise UnknownCommandError(f"there is no {place}")


def _is_within(word: str, requirements: Sequence[Requirement]) -> bool:
    """True for one version of a package that pyproject.toml allows, such as "torch==2.13.0"."""
    name, _, version = word.partition("==")
    return bool(version) and any(each.name == name and each.specifier.contains(version) for each in requirements)


def _check_packages(words: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    files = {word for flag, word in pairwise(words) if flag == "-r"}
    _check_paths(sorted(files))
    known = project["optional-dependencies"]
    passed = {word for flag, word in pairwise(words) if flag == "--index-url"} | files
    pinned = [Requirement(requirement) for extra in known.values() for requirement in extra]
    for word in words:
        if word.startswith("-") or word in passed or _is_within(word, pinned):
            continue
        name, _, extras = word.rstrip("]").partition("[")
        if name not in (project["name"], ".") or not set(filter(None, extras.split(","))) <= known.keys():
            raise UnknownCommandError(f"pip install {word}: pyproject.toml knows no such package or extra")
