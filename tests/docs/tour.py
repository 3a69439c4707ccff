"""Measures the tour of one round in docs/architecture.md: how many files and lines it asks its reader to read."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_ROW = re.compile(r"^\| `([\w/]+\.py)` \| ([^|]+) \|", re.MULTILINE)


@dataclass(frozen=True)
class Tour:
    """What a tour takes."""

    files: int
    lines: int
    whole_lines: int
    """Lines of the same files, with what the tour leaves out."""


def measured(page: str) -> Tour:
    """Count the rows of a table of files and names; raises KeyError for a name that its file does not define."""
    rows = _ROW.findall(page)
    lines = [(_lines(ROOT / path, names), _lines(ROOT / path, "all")) for path, names in rows]
    return Tour(len(rows), sum(each for each, _ in lines), sum(whole for _, whole in lines))


def _lines(path: Path, names: str) -> int:
    source = path.read_text("utf-8")
    if names == "all":
        return source.count("\n")
    sizes = _sizes(ast.parse(source))
    return sum(sizes[name] for name in re.findall(r"`([\w.]+)`", names))


def _sizes(tree: ast.Module | ast.ClassDef, inside: str = "") -> dict[str, int]:
    """Lines of each class, function and method, decorators left out."""
    sizes = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            sizes[inside + node.name] = (node.end_lineno or 0) - node.lineno + 1
        if isinstance(node, ast.ClassDef):
            sizes |= _sizes(node, f"{node.name}.")
    return sizes
