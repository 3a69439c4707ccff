"""Commands of other packages: those of the page that teaches how to add one, and those that cannot be used."""

import json
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer

from marless.app.cli.main import GROUP, PANEL
from tests.unit.cost.billing.rounds import paper_round
from tests.unit.jobs.test_record import RETURNS

KIND = "command"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A run folder of two rounds, of which the first was better."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text("env: {name: mpe/simple_spread}\nalgorithm: ippo\nstop: {rounds: 2}\n")
    (folder / "job.json").write_text(json.dumps({"job": "first", "state": "SUCCEEDED"}))
    lines = []
    for number, mean in enumerate((-1.0, -2.0)):
        lines.append(replace(paper_round(number, actors=2), returns=replace(RETURNS, mean=mean)).to_json())
    (folder / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))


def test_the_command_of_the_page_is_a_verb(package, runs, marless):
    code, out, _ = marless("--help")
    assert (code, "Print the round in which the mean" in out, PANEL in out) == (0, True, True)
    assert marless("best", "first") == (0, "0\n", "")
    assert json.loads(marless("best", "first", "-o", "json")[1]) == {"job": "first", "round": 0, "return": -1.0}
    code, _, said = marless("best", "second")
    assert code == 102 and "second: there is no such run folder here" in said


@pytest.fixture
def declared(monkeypatch):
    """Declares commands as packages would: each a name, and what its entry point names."""

    def declare(**commands):
        monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(**commands))
        entries = EntryPoints(EntryPoint(name, f"their_package:{name}", GROUP) for name in (*commands, "missing"))
        monkeypatch.setattr("marless.core.registry.entry_points", lambda group: entries.select(group=group))

    return declare


def test_what_cannot_be_imported_or_is_no_command_is_one_sentence_and_all_others_work(marless, declared):
    def odd(where: Annotated[int, typer.Option(), typer.Option()]) -> None:
        """A declaration that typer does not understand."""

    declared(number=3, odd=odd)
    code, out, said = marless("--help")
    assert code == 0 and said == ""
    assert all(f" {name} " in out for name in ("missing", "number", "odd", "train", "scheduler"))
    for name, why in {
        "missing": "their_package:missing of the package their_package cannot be loaded: AttributeError",
        "number": "their_package:number is no command: ",
        "odd": "their_package:odd is no command: ",
    }.items():
        code, out, said = marless(name, "--what", "ever", "-o", "json")
        assert (code, out) == (2, "")
        assert said.startswith(f"marless: command {name}: {why}") and said.count("\n") == 1


def test_nobody_replaces_a_verb_of_ours_or_of_a_plugin(marless, declared):
    theirs = typer.Typer()
    theirs.command("train")(lambda: pytest.fail("it is not ours"))
    declared(train=theirs, scheduler=theirs)
    assert "JOB.yaml" in marless("train", "--help")[1]
    assert "Train a scheduler on runs" in marless("scheduler", "--help")[1]


def test_a_command_of_ours_reads_no_entry_points(marless, monkeypatch):
    monkeypatch.setattr("marless.core.registry.entry_points", lambda **_: pytest.fail("entry points are read"))
    monkeypatch.setattr("marless.core.registry.distribution", lambda _: pytest.fail("entry points are read"))
    assert marless("train", "--help")[0] == 0
