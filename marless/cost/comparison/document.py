"""Writes a comparison into a Markdown document, between the marks `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path

from marless.core.errors import SpecError, UnavailableError
from marless.cost.comparison.table import Comparison, markdown


def marks(name: str) -> tuple[str, str]:
    """The marks before and after the block `name`."""
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def check(document: Path, name: str) -> None:
    """Raise SpecError if the document cannot be read or has no block `name`."""
    _section(_text(document), document, name)


def write(document: Path, name: str, block: str) -> None:
    """Replace the block `name`; raises SpecError if there is none, UnavailableError if it cannot be written."""
    text, (begin, end) = _text(document), marks(name)
    section = _section(text, document, name)
    try:
        document.write_text(section.sub(lambda _: f"{begin}\n{block}\n{end}", text, count=1), encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{document}: cannot be written ({error.strerror})") from None


def block(comparison: Comparison, statements: Sequence[str], *, command: str, picture: str) -> str:
    """The contents of a block: the command, the table, the picture, the statements, and where and how long it ran."""
    said = "\n".join(f"- {statement}" for statement in statements)
    shown = f"![Learners, actors, return and cost over rounds]({picture})"
    return "\n\n".join([f"```sh\n{command}\n```", markdown(comparison), shown, said, _where(comparison)])


def _where(comparison: Comparison) -> str:
    columns = comparison.columns
    by_run = {each.run: each.measured_s for column in columns for each in column.figures}
    lengths = [each.rounds for column in columns for each in column.figures]
    rounds = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{platform.python_version()}: {len(by_run)} runs of {rounds} rounds, {sum(by_run.values()) / 60:.1f} minutes "
        "of rounds."
    )


def _text(document: Path) -> str:
    try:
        return document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(f"{document}: cannot be read ({why}); give a document that has a block") from None


def _section(text: str, document: Path, name: str) -> re.Pattern[str]:
    begin, end = marks(name)
    section = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not section.search(text):
        raise SpecError(
            f"{document} has no block for the job {name}; put the lines {begin} and {end} where it is to be"
        )
    return section
