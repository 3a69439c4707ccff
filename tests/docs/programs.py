"""The Python of a page: run as a reader would, who types one snippet after the other and writes the files it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.docs.blocks import blocks, files
from tests.docs.tables import TREATMENTS


def run(page: str) -> dict[str, Any]:  # Any: what the page defines
    """Run the snippets of a page in order, in the working directory; the names that are defined in the end."""
    names: dict[str, Any] = {"__name__": page}
    if page in TREATMENTS:
        exec(TREATMENTS[page].given, names)
    for block in blocks(page, "python"):
        if not block.file and not block.excerpt:
            exec(compile("\n" * block.line + block.text, page, "exec", dont_inherit=True), names)
    return names


def install(page: str, place: Path) -> None:
    """Write the page's files below `place`."""
    for path, text in files(page).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, "utf-8")
