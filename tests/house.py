"""Figures of the house: rooms, floors, files, lines, the grain of its functions, and comments; plug-ins apart.

python -m tests.house
python -m tests.house --revision e76370cc
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.imports import drawn, layers, sources
from tests.test_architecture import arrows

GENERATED = "marless.rpc.v1"


@dataclass(frozen=True)
class House:
    """What is counted of `marless` and `services`, or of the plug-ins; generated code is left out."""

    rooms: int
    floors: int
    arrows: int
    files: int
    lines: int
    function_p50: float
    function_p90: int
    comments: int
    """Lines that hold a comment and nothing else."""

    @classmethod
    def of(cls, tree: Mapping[str, str]) -> House:
        """Count the modules of a tree, each given as name and source."""
        written = {name: source for name, source in tree.items() if not name.startswith(GENERATED)}
        found = arrows({name: source for name, source in written.items() if "." in name})
        lengths = sorted(length for source in written.values() for length in _functions(source))
        return cls(
            rooms=len(found),
            floors=len(layers(drawn(found)[1])),
            arrows=sum(map(len, found.values())),
            files=len(written),
            lines=sum(source.count("\n") for source in written.values()),
            function_p50=statistics.median(lengths),
            function_p90=lengths[len(lengths) * 9 // 10],
            comments=sum(map(_comments, written.values())),
        )


def _functions(source: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def _comments(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(each.type == tokenize.COMMENT and each.line.lstrip().startswith("#") for each in tokens)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default="", help="a commit; this checkout if not given")
    revision = parser.parse_args().revision
    houses = {"house": House.of(sources(revision))}
    if plugins := _plugins(revision):
        houses["plug-ins"] = House.of(plugins)
    sys.stdout.write(" ".join([f"{'':14}", *(f"{title:>8}" for title in houses)]) + "\n")
    for name in vars(houses["house"]):
        figures = (f"{getattr(each, name):>8,}" for each in houses.values())
        sys.stdout.write(" ".join([f"{name.replace('_', ' '):14}", *figures]) + "\n")


def _plugins(revision: str) -> dict[str, str]:
    """Source of each module of the plug-ins, of which each is a room; none of a commit before there were any."""
    try:
        return sources(revision, ("plugins",))
    except subprocess.CalledProcessError:
        return {}


if __name__ == "__main__":
    main()
