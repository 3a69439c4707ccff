"""Every command that reads a run folder, over every kind of damage: its exit code, one sentence, at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from marless import load_policy
from marless.core.errors import MarlessError
from marless.learning.envs.base import Discrete
from tests.unit.cost.comparison.synthetic import record, spec, write
from tests.unit.learning.policies.saved import save, state

PATIENCE_S = 20.0
GIB = 2**30
OBS = 12
"""Of mpe/simple_spread with two agents."""


@contextmanager
def patience() -> Iterator[None]:
    """Ends what waits for a pipe or reads without end."""

    def give_up(*_: object) -> None:
        raise TimeoutError("the command has not ended")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A whole run folder: records, and a checkpoint of policies that can be played."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    monkeypatch.delenv("MARLESS_RUNS", raising=False)
    folder = write(tmp_path / "runs" / "tiny", spec(), [record(number) for number in range(3)])
    text = (folder / "spec.yaml").read_text()
    save(folder, {"p": state(OBS, Discrete(5), seed=0)}, {"p": ("agent_0", "agent_1")})
    (folder / "spec.yaml").write_text(text)
    return folder


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its whole path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 * GIB)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a pipe": _pipe,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "a loop": lambda path: path.symlink_to(path.name),
    "10 GB": _sparse,
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\n" * 9),
}
COMMANDS = {
    "cost": ("cost", "tiny"),
    "explain": ("explain", "tiny"),
    "simulate": ("simulate", "tiny"),
    "plot": ("plot", "tiny", "--to", "x.png"),
    "evaluate": ("evaluate", "tiny", "--episodes", "1"),
    "export": ("export", "tiny", "--to", "x.safetensors"),
    "one policy": ("export", "tiny", "--policy", "p", "--to", "p.safetensors"),
    "card": ("card", "tiny"),
    "dry run": ("train", "job.yaml", "--dry-run", "--from", "tiny"),
}
READS = {
    "job.json": ("cost", "explain", "simulate", "plot", "dry run", "export", "card"),
    "spec.yaml": tuple(COMMANDS),
    "rounds.jsonl": ("cost", "explain", "simulate", "plot", "dry run", "evaluate", "export", "card"),
    "checkpoints/round-000001/manifest.json": ("evaluate", "export", "one policy", "card"),
    "checkpoints/round-000001/p.acting.safetensors": ("evaluate", "export", "one policy", "card"),
}
"""File → the commands that read it."""


def damaged(run: Path, file: str, what: str) -> Path:
    path = run / file
    path.unlink(missing_ok=True)
    INSTEAD[what](path)
    return path


@pytest.mark.parametrize("what", INSTEAD)
@pytest.mark.parametrize("file", READS)
def test_each_command_says_in_one_sentence_which_file_is_none(run, marless, tmp_path, file, what):
    (tmp_path / "job.yaml").write_text(spec().to_yaml())
    path = damaged(run, file, what)
    for name, command in COMMANDS.items():
        with patience():
            code, out, said = marless(*command)
        if name in READS[file]:
            assert (code, said.count("\n"), out) == (1, 1, ""), (name, said)
            assert path.name in said and len(said) < 500, (name, said)
        elif name != "dry run":
            assert code == 0, (name, said)


@pytest.mark.parametrize("what", INSTEAD)
def test_machines_that_cannot_be_read_are_left_out_and_said(run, marless, what):
    expected = marless("cost", "tiny", "-o", "json")[1]
    damaged(run, "machines.json", what)
    for name in ("cost", "explain", "simulate", "plot"):
        with patience():
            code, out, said = marless(*COMMANDS[name])
        assert code == 0 and out
        note, *_ = said.splitlines()
        assert note.startswith(f"marless: note: {run}/machines.json".replace(f"{run}", "runs/tiny"))
        assert note.endswith("; what machines cost after the job's end is left out")
    assert marless("cost", "tiny", "-o", "json")[1] == expected


@pytest.mark.parametrize("command", ["cost", "explain", "simulate", "plot"])
def test_rounds_that_are_missing_twice_or_without_end_are_said(run, marless, command):
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    for rounds, sentence in (
        ([lines[0], lines[0], *lines[1:]], "line 2: this is the record of round 1; rounds are missing, or there twice"),
        ([lines[0], lines[2]], "line 2: this is the record of round 3; rounds are missing, or there twice"),
        ([lines[0], _changed(lines[1], ended_s=float("nan")), lines[2]], "line 2: this is not a round record"),
        ([_changed(lines[0], ended_s=float("inf")), *lines[1:]], "line 1: this is not a round record"),
        ([_changed(lines[0], idle_s=float("nan")), *lines[1:]], "line 1: this is not a round record"),
        ([_changed(lines[0], started_s=-1e308), *lines[1:]], "line 1: this is not a round record"),
        ([_changed(lines[0], env_steps=10**400), *lines[1:]], "line 1: this is not a round record"),
    ):
        (run / "rounds.jsonl").write_text("".join(rounds))
        code, out, said = marless(*COMMANDS[command])
        assert (code, out, said.count("\n")) == (1, "", 1) and f"rounds.jsonl, {sentence}" in said


def _changed(line: str, **fields: object) -> str:
    return json.dumps(json.loads(line) | fields) + "\n"


@pytest.mark.parametrize("what", INSTEAD)
def test_a_policy_or_a_run_folder_that_is_none_is_refused(run, marless, tmp_path, what):
    INSTEAD[what](tmp_path / "policy")
    with patience():
        code, _, said = marless("evaluate", "policy")
    assert code == (102 if what == "a directory" else 1) and said.count("\n") == 1 and "policy" in said
    with patience(), pytest.raises(MarlessError, match="policy"):
        load_policy(tmp_path / "policy")


def test_links_of_users_are_followed(run, marless, tmp_path):
    elsewhere = tmp_path / "disk"
    run.rename(elsewhere)
    run.symlink_to(elsewhere)
    (elsewhere / "spec.yaml").rename(tmp_path / "spec.yaml")
    (elsewhere / "spec.yaml").symlink_to(tmp_path / "spec.yaml")
    for name in ("cost", "explain", "simulate", "evaluate"):
        assert marless(*COMMANDS[name])[0] == 0
    assert marless("export", "tiny", "--to", "p.safetensors")[0] == 0
    (tmp_path / "link").symlink_to("p.safetensors")
    assert load_policy(tmp_path / "link").origin.round == 1


@pytest.mark.parametrize("what", INSTEAD)
@pytest.mark.parametrize("file", ["job.json", "owner.lock"])
def test_what_looks_at_all_run_folders_is_kept_from_none_by_one(run, marless, tmp_path, file, what):
    shutil.copytree(run, tmp_path / "runs" / "other")
    status = json.loads((run / "job.json").read_text())
    (tmp_path / "runs" / "other" / "job.json").write_text(json.dumps(status | {"job": "other", "state": "RUNNING"}))
    (run / "job.json").write_text(json.dumps(status | {"state": "PENDING"}))
    damaged(run, file, what)
    with patience():
        code, _, said = marless("down")
    waiting = "other" if file == "job.json" else "other, tiny"
    assert (code, said) == (
        0,
        f"marless: no services were running\nmarless: these jobs continue at the next `marless up`: {waiting}\n",
    )
    with patience():
        assert "other" in marless("doctor")[1]


@pytest.mark.parametrize("what", INSTEAD)
@pytest.mark.parametrize("file", ["stack.json", "logs/supervisor.log"])
def test_a_stack_file_that_is_none_is_no_stack(run, marless, tmp_path, file, what):
    (tmp_path / "runs" / ".stack" / "logs").mkdir(parents=True)
    damaged(tmp_path / "runs" / ".stack", file, what)
    with patience():
        assert marless("doctor")[0] in (0, 1)
        code, _, said = marless("watch", "tiny")
        assert code == 1 and said.count("\n") == 1


def test_a_comparison_says_which_run_is_damaged(marless, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = {"name": "tiny", "env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    compare = ("compare", "job.yaml", "--presets", "vanilla", "--seeds", 1, "--out", "c", "--resume")
    runs = tmp_path / "c" / "runs"
    monkeypatch.setattr(
        "marless.app.cli.compare.ComparisonFolder.make_here", lambda _place, run, _number: (runs / run.id).mkdir()
    )
    runs.mkdir(parents=True)
    assert marless(*compare)[0] == 102  # the run was not really made
    [folder] = runs.iterdir()
    for what, put in INSTEAD.items():
        shutil.rmtree(folder)
        folder.mkdir()
        put(folder / "job.json")
        with patience():
            code, _, said = marless(*compare)
        assert code == 1 and said.count("\n") == 1 and str(folder) in said, (what, said)
