"""The Python of a page: run as a reader would, who types one snippet after the other and writes the files it names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
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
        if not block.file:
            exec(compile("\n" * block.line + block.text, page, "exec", dont_inherit=True), names)
    return names


def install(page: str, place: Path) -> None:
    """Write the page's files below `place`, and its entry point as an installer would: `place` must be on the path."""
    for path, text in files(page).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, "utf-8")
    for block in blocks(page, "toml"):
        _install(tomllib.loads(block.text)["project"]["entry-points"], place)


def _install(entries: Mapping[str, Mapping[str, str]], place: Path) -> None:
    [(group, names)] = entries.items()
    info = place / "my_package-1.dist-info"
    info.mkdir(exist_ok=True)  # by an earlier page
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n", "utf-8")
    lines = [f"[{group}]", *(f"{name} = {where}" for name, where in names.items()), ""]
    with (info / "entry_points.txt").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines))
