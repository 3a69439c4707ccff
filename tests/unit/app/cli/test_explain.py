"""`marless explain`: from a run folder and from a coordinator, for people and for programs, and its picture."""

import json

import pytest
import yaml

from tests.scripted_coordinator import ScriptedCoordinator
from tests.unit.cost.comparison.synthetic import record, spec, write

APART = (("agent_0",), ("agent_1",))
PAIR = (("agent_0", "agent_1"),)
SHARING = {"slope": 0.0712345678, "window": [1.0, 2.0], "classes": {"agent": {"k": 1}}}


def records() -> list:
    shown = [(50, APART), (50, APART), (40, APART), (30, PAIR), (45, PAIR), (45, PAIR)]
    return [
        record(
            number,
            actors=actors,
            groups=groups,
            mean=-20.0 + number,
            greedy=-15.0 if number == len(shown) - 1 else None,
            reasons=(f"they need {actors}" if number < 5 else "nothing is known", f"slope {number / 8:g}"),
            inputs=SHARING,
        )
        for number, (actors, groups) in enumerate(shown)
    ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    return write(tmp_path / "runs" / "tiny", spec(), records())


def lines(text: str) -> list[list[str]]:
    """Cells of a printed table."""
    return [[cell for cell in line.strip().split("  ") if cell] for line in text.splitlines()]


def test_changes_are_a_table_for_people(folder, marless):
    code, out, err = marless("explain", "tiny")
    assert (code, err) == (0, "")
    assert [[cell.strip() for cell in row] for row in lines(out)] == [
        ["rounds", "change", "to", "rule", "because"],
        ["1–3", "start", "2 groups: agent_0 agent_1", "marless", "round 1: slope 0"],
        ["1–2", "50 actors", "marless", "they need 50"],
        ["3", "fewer actors", "50 → 40 actors", "marless", "they need 40"],
        ["4–6", "share", "1 group: agent_0+agent_1", "marless", "round 4: slope 0.375"],
        ["4", "fewer actors", "40 → 30 actors", "marless", "they need 30"],
        ["5", "more actors", "30 → 45 actors", "marless", "they need 45"],
        ["6", "45 actors", "marless", "nothing is known"],
    ]


def test_a_round_shows_all_that_it_was_decided_from(folder, marless):
    code, out, _ = marless("explain", folder, "--round", 4)
    assert code == 0
    assert out == (
        "round 4 of 6 of job tiny: 30 actors, 1 group\n"
        "\n"
        "scaling by marless: 30 actors (before: 40 actors)\n"
        "  they need 30\n"
        "  slope: 0.071235\n"
        "  window: [1.0, 2.0]\n"
        "  classes:\n"
        "    agent: {k: 1}\n"
        "\n"
        "sharing by marless: agent_0+agent_1 (before: agent_0 agent_1)\n"
        "  slope 0.375\n"
    )


def test_programs_get_every_change_and_every_input(folder, marless):
    found = json.loads(marless("explain", "tiny", "-o", "json")[1])
    assert (found["job"], found["rounds"]) == ("tiny", 6)
    assert [(each["round"], each["change"]) for each in found["changes"]] == [
        (0, "start"),
        (0, "start"),
        (2, "fewer actors"),
        (3, "share"),
        (3, "fewer actors"),
        (4, "more actors"),
    ]
    assert found["changes"][-1]["inputs"] == SHARING
    rows = [json.loads(line) for line in marless("explain", "tiny", "-o", "jsonl")[1].splitlines()]
    assert rows == found["changes"]
    one = yaml.safe_load(marless("explain", "tiny", "--round", 4, "-o", "yaml")[1])
    assert (one["round"], one["actors"], one["groups"]) == (3, 30, {"agent_0": ["agent_0", "agent_1"]})
    assert one["decisions"][0]["inputs"] == SHARING


def test_a_coordinator_is_asked_for_what_is_not_here(folder, marless, tmp_path, monkeypatch):
    expected = marless("explain", "tiny")[1]
    with ScriptedCoordinator(tmp_path) as coordinator:
        coordinator.add("far")
        job = coordinator.servicer.jobs["far"]
        job.files = {name: (folder / name).read_bytes() for name in ("spec.yaml", "job.json", "rounds.jsonl")}
        job.files["rounds.jsonl"] += b'{"torn'
        assert marless("explain", "far", "--coordinator", coordinator.address)[:2] == (0, expected)
        code, _, err = marless("explain", "farther", "--coordinator", coordinator.address)
        assert (code, err) == (102, "marless: there is no job 'farther'\n")
        job.files["rounds.jsonl"] += b"\n"
        code, _, err = marless("explain", "far", "--coordinator", coordinator.address)
        assert (code, err) == (1, "marless: rounds.jsonl of job far, line 7: this is not a round record\n")


def test_a_coordinator_that_is_named_is_asked_first(folder, marless, tmp_path):
    with ScriptedCoordinator(tmp_path) as coordinator:
        coordinator.add("tiny")
        files = {name: (folder / name).read_bytes() for name in ("spec.yaml", "job.json")}
        coordinator.servicer.jobs["tiny"].files = files
        there = ("--coordinator", coordinator.address)
        assert marless("explain", "tiny", *there)[2] == "marless: job tiny has no round yet: nothing has been decided\n"
        assert "they need 50" in marless("explain", folder, *there)[1]


def test_a_job_that_nobody_knows(folder, marless):
    code, _, err = marless("explain", "nothing")
    assert code == 102
    assert err.startswith("marless: nothing: there is no such run folder here, no such job in ")
    assert err.count("\n") == 1


def test_a_job_without_rounds(folder, marless, tmp_path):
    write(tmp_path / "runs" / "young", spec(), [], state="RUNNING")
    assert marless("explain", "young") == (
        0,
        "",
        "marless: job young has no round yet: nothing has been decided\n",
    )
    assert marless("explain", "young", "--picture", "x.png")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--round", 7), 102, "job tiny has no round 7; 6 rounds are recorded"),
        (("--round", 2, "-o", "jsonl"), 2, "--round shows a single round: give -o table, json or yaml"),
        (("--picture", "x.txt"), 2, "x.txt: a picture's name ends with one of .png, .svg, .pdf"),
        (("--picture", "job.json/x.png"), 1, "job.json/x.png: cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(folder, marless, monkeypatch, arguments, code, said):
    monkeypatch.chdir(folder)
    got, _, err = marless("explain", folder, *arguments)
    assert (got, err.count("\n")) == (code, 1)
    assert err.startswith(f"marless: {said}")


def test_a_folder_that_holds_something_else(folder, marless):
    (folder / "job.json").write_text("{}")
    code, _, err = marless("explain", "tiny")
    assert (code, err.count("\n")) == (1, 1)
    assert "job.json or spec.yaml is damaged" in err


def test_the_picture_is_there_and_shows_something(folder, marless, tmp_path):
    matplotlib = pytest.importorskip("matplotlib.image")
    assert marless("explain", "tiny", "--picture", "new/run.png")[0] == 0
    pixels = matplotlib.imread(tmp_path / "new" / "run.png")
    assert pixels.shape[0] > 500
    assert pixels[..., :3].std() > 0.05
