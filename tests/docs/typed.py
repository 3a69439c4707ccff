"""Pages whose commands are run, and how: one block after the other, and then the page's Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from marless.storage.round_file import read
from tests.docs import elsewhere, programs
from tests.docs.blocks import PAGES, blocks, of_kind
from tests.docs.tables import TREATMENTS
from tests.docs.workplace import Workplace, to_run, treatment, treatment_of

LAST = ("README.md", "docs/operating.md")
"""One ends the stack that others share; one ends and starts its own."""
TYPED = sorted(
    {block.page for block in of_kind("sh", "console") if to_run(block) and not treatment_of(block).needs},
    key=lambda page: (page in LAST, PAGES.index(page)),
)


def parameters(*, alone: bool) -> Sequence[object]:
    """The pages that are typed in an empty directory, or the others, as parameters of a test."""
    return [
        pytest.param(page, marks=[pytest.mark.slow] if page in TREATMENTS and TREATMENTS[page].slow else [])
        for page in TYPED
        if treatment(page).alone == alone
    ]


def check_commands(workplace: Workplace, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise AssertionError unless the commands of a page run, show what it says, and leave what else is true then."""
    workplace.prepare(page)
    for block in blocks(page, "sh", "console", "python"):
        if treatment_of(block).needs:
            continue
        if block.kind == "sh":
            workplace.run(block)
        elif block.kind == "console":
            elsewhere.check(block, workplace.transcript(block))
    monkeypatch.chdir(workplace.path)
    names = programs.run(page)
    if page in CHECKS:
        CHECKS[page](workplace.path, names)


def readers_algorithm_was_trained(place: Path, _names: Mapping[str, object]) -> None:
    """Its own functions have run, and its loss has had gradients."""
    [folder] = (place / "spo" / "runs").glob("spo-*")
    last = list(read(folder / "rounds.jsonl"))[-1]
    assert {each.function for each in last.invocations} >= {"actor", "post_process", "critic", "policy"}
    assert last.metrics["agent_0"]["grad_norm"] > 0


def client_has_what_it_asked_for(place: Path, names: Mapping[str, Any]) -> None:  # Any: what the page defines
    """Its jobs have ended, and their files are there."""
    assert names["rounds"] == [0, 1]
    assert [job.state for job in names["jobs"]] == ["SUCCEEDED"] * 3
    assert (place / "seed-1/rounds.jsonl").read_text("utf-8").count("\n") == 8
    assert "rounds.jsonl" in [file.path for file in names["files"]]


CHECKS: Mapping[str, Callable[[Path, Mapping[str, Any]], None]] = {
    "docs/client.md": client_has_what_it_asked_for,
    "docs/extending/algorithm.md": readers_algorithm_was_trained,
}
"""What else is true after the commands of a page."""
