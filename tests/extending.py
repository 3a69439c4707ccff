"""A page of docs/extending, taken at its word: its files written, its package installed."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs/extending"


def files(page: str) -> dict[str, str]:
    """The files that a page has the reader write, by path."""
    found = re.findall(r"^`([\w./]+)`:\n```\w+\n(.*?)^```$", _text(page), re.DOTALL | re.MULTILINE)
    return dict(found)


def install(page: str, place: Path) -> None:
    """Write the page's files below `place`, and its entry point as an installer would: `place` must be on the path."""
    for path, text in files(page).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, "utf-8")
    [(group, line)] = re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n(.*)$', _text(page), re.MULTILINE)
    info = place / "my_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n", "utf-8")


def _text(page: str) -> str:
    return (DOCS / page).read_text("utf-8")
