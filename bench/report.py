"""Writes benchmark results into the documents that have a place for them: `python -m bench.report FILE…`.

NAME.json, written by a benchmark's `--json`, replaces the text between `<!-- NAME -->` and `<!-- /NAME -->`. The page
chooses the columns: those of the table that it has there stay, in its order; the file has all. Without a document that
has this section, the whole table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import ROOT, table

DOCUMENTS = tuple(
    ROOT / "docs" / name
    for name in (
        "benchmarks.md",
        "benchmarks_services.md",
        "cost.md",
        "environments/mujoco.md",
        "environments/wall_model.md",
        "results.md",
        "asynchronous_measured.md",
    )
)


def render(result: Mapping[str, Any], columns: Sequence[str] = (), folder: Path = ROOT) -> str:  # Any: JSON
    """A result's table, of these columns or of all, its picture, if it has one, and a line on machine and date.

    The page is in `folder`; results name pictures by their paths in the project.
    """
    m, rows = result["machine"], result["rows"]
    if columns:
        rows = [{name: row[name] for name in columns if name in row} for row in rows]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    drawn = ""
    for file, shows in result.get("pictures", {}).items():
        drawn += f"![{shows}]({os.path.relpath(ROOT / file, folder)})\n\n*{shows}.*\n\n"
    return (
        f"{table(rows)}\n\n{drawn}"
        f"{m['measured']}, {m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB; Python {m['python']}, {versions}; "
        f"load average before: {m['load_before']}."
    )


def columns_of(document: str, name: str, known: Collection[str]) -> list[str]:
    """The columns of a document's present table in the section `name`; [] if it has none, or none of those `known`."""
    _, _, section = document.partition(f"<!-- {name} -->\n")
    header = section.partition("\n")[0].strip()
    return [cell.strip() for cell in header.strip("|").split("|") if cell.strip() in known]


def insert(document: str, name: str, text: str) -> str:
    """Replace the section `name`; raises ValueError if the document has none."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    section = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not section.search(document):
        raise ValueError(f"the document has no section between {begin} and {end}")
    return section.sub(lambda _: f"{begin}\n{text}\n{end}", document)


def main() -> None:
    """Render every file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    for file in parser.parse_args().files:
        put(file.stem, json.loads(file.read_text(encoding="utf-8")))


def put(name: str, result: Mapping[str, Any]) -> None:  # Any: JSON
    """Replace the section `name` of the document that has one; print the whole result if none has."""
    known = {column for row in result["rows"] for column in row}
    for page in DOCUMENTS:
        document = page.read_text(encoding="utf-8")
        if f"<!-- {name} -->" in document:
            text = render(result, columns_of(document, name, known), page.parent)
            page.write_text(insert(document, name, text), encoding="utf-8")
            return
    print(f"{name}\n\n{render(result)}\n")


if __name__ == "__main__":
    main()
