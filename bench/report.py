"""Writes benchmark results into the documents that have a place for them: `python -m bench.report FILE…`.

NAME.json, written by a benchmark's `--json`, replaces the text between `<!-- NAME -->` and `<!-- /NAME -->`. It is
printed if no document has this section.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness import ROOT, table

DOCUMENTS = tuple(
    ROOT / "docs" / name
    for name in ("benchmarks.md", "benchmarks_services.md", "environments.md", "results.md", "asynchronous_measured.md")
)


def render(result: Mapping[str, Any]) -> str:  # Any: JSON
    """A result's table and picture, if it has one, and a line on the machine and date of the measurement."""
    m = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    drawn = "".join(f"![{shows}]({file})\n\n*{shows}.*\n\n" for file, shows in result.get("pictures", {}).items())
    return (
        f"{table(result['rows'])}\n\n{drawn}"
        f"{m['measured']}, {m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB; Python {m['python']}, {versions}; "
        f"load average before: {m['load_before']}."
    )


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
        put(file.stem, render(json.loads(file.read_text(encoding="utf-8"))))


def put(name: str, text: str) -> None:
    """Replace the section `name` of the document that has one; print the text if none has."""
    for page in DOCUMENTS:
        document = page.read_text(encoding="utf-8")
        if f"<!-- {name} -->" in document:
            page.write_text(insert(document, name, text), encoding="utf-8")
            return
    print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
