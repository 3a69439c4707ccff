"""`marless.train` from Python: the command's weights, in scripts, threads and notebooks; nothing is left behind."""

from __future__ import annotations

import asyncio
import importlib.machinery
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
import yaml

import marless
from marless.app.cli import recorded
from marless.app.cli import train as local
from marless.app.client.asynchronous import AsyncClient
from marless.app.client.jobs import Job
from marless.app.result import COLUMNS
from marless.core.errors import JobStateError, NotFoundError, SpecError, UnavailableError
from marless.cost.billing.bill import bill
from marless.jobs import prices
from marless.jobs.spec import load_resolved, parse
from marless.storage.round_file import read
from tests.called import called
from tests.e2e.test_in_process import CORRIDOR
from tests.e2e.test_train import JOB

SMALL = JOB | {"evaluation": {"every": 2, "episodes": 4, "random_episodes": 20}, "stop": {"rounds": 4}}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(SMALL))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_RUNS", raising=False)
    return tmp_path


def weights(team: marless.Team) -> dict[str, np.ndarray]:
    return {
        f"{name}/{part}": array for name, policy in team.policies.items() for part, array in policy.state.acting.items()
    }


def check_same(team: marless.Team, other: marless.Team) -> None:
    found, expected = weights(team), weights(other)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def threads_of_torch() -> int:
    """In a thread that has not used torch before, because each keeps the number that it began with."""
    with ThreadPoolExecutor(1) as fresh:
        return fresh.submit(torch.get_num_threads).result()


def here(**more: object) -> marless.Result:
    """A run in this process, which takes a second."""
    return marless.train(SMALL, in_process=True, progress=False, **more)


def test_the_weights_are_the_commands_and_nothing_is_left(capfd):
    command = ("train", "job.yaml", "--in-process", "--job", "command", "--set", "seed=7")
    assert called(Path.cwd(), command, os.environ)[0] == 0
    expected = marless.load_policy("command")
    child = subprocess.Popen(["sleep", "600"])  # of this program: none of marless's business
    before = dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    threads, compute = set(threading.enumerate()), threads_of_torch()
    # Earlier tests of this process may have left children and threads, which may end meanwhile.
    children = set(psutil.Process().children(recursive=True))
    try:
        results = [
            marless.train("job.yaml", seed=7),
            marless.train(SMALL, seed=7, in_process=True, job="mine"),
            marless.train(parse(SMALL, "spec"), set={"seed": 7}, in_process=True, workers=1),
        ]
        assert child.poll() is None
        assert set(psutil.Process().children(recursive=True)) <= children
    finally:
        child.kill()
        child.wait()
    assert (dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert set(threading.enumerate()) <= threads
    assert threads_of_torch() == compute
    for result in results:
        check_same(result.team, expected)
        assert (result.state, result.reason, result.summary["rounds"]) == ("SUCCEEDED", "4 rounds done", 4)
        assert result.folder == Path("runs").absolute() / result.job
        assert (result.folder / "curve.png").exists()
        assert not (result.folder / "store").exists()
    assert results[1].job == "mine"
    out, said = capfd.readouterr()
    assert out == ""
    assert "round 4 of 4" in said


def test_rounds_are_a_table(monkeypatch):
    result = here()
    records, spec = list(read(result.folder / "rounds.jsonl")), load_resolved(result.folder / "spec.yaml")
    for package in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, package, None)
    table = result.rounds
    assert list(table) == list(COLUMNS)
    assert table["round"] == [1, 2, 3, 4]
    assert table["env_steps"] == [40, 80, 120, 160]  # 2 actors · 4 copies · 5 steps
    assert table["seconds"][-1] == sum(record.spent_s for record in records)
    assert (table["actors"], table["learners"]) == ([2] * 4, [1] * 4)
    assert table["return"] == [record.returns.mean for record in records]
    evaluated = [mean is not None for mean in table["greedy_return"]]
    assert evaluated == [False, True, False, True]  # every second round
    assert table["greedy_return"][3] == result.greedy_return == result.summary["return"]
    assert table["greedy_standard_error"][3] == result.summary["return_standard_error"]
    made = bill(records, spec, prices.load())
    assert table["cost_usd"] == [each.usd("billed") for each in made.rounds]
    assert result.cost == {name: made.total_usd(name) for name in ("paper", "billed", "serverful")}


@pytest.mark.parametrize(("installed", "used"), [(("polars",), "polars"), (("polars", "pandas"), "pandas")])
def test_rounds_are_a_data_frame_where_a_package_has_them(monkeypatch, installed, used):
    result = here()
    for name in ("pandas", "polars"):
        package = ModuleType(name)
        package.__spec__ = importlib.machinery.ModuleSpec(name, None)
        package.DataFrame = lambda columns, name=name: (name, list(columns))
        monkeypatch.setitem(sys.modules, name, package if name in installed else None)
    assert result.rounds == (used, list(COLUMNS))


def test_inside_an_event_loop_and_in_a_thread():
    async def cell() -> marless.Result:
        return here()  # as a notebook calls it: the loop runs in this thread

    found: list[marless.Result] = []
    thread = threading.Thread(target=lambda: found.append(here()))
    thread.start()
    thread.join()
    check_same(asyncio.run(cell()).team, found[0].team)


def test_numbers_of_numpy_are_numbers():
    result = here(seed=np.int64(5), set={"algorithm.lr": np.float64(0.25)})
    spec = load_resolved(result.folder / "spec.yaml")
    assert (spec.seed, spec.algorithm.lr) == (5, 0.25)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_job_in_this_process_runs_alone_in_it(monkeypatch, first, second):
    begun, may_end = threading.Event(), threading.Event()

    def job_that_waits(*_: object, **__: object) -> None:
        begun.set()
        may_end.wait()

    with monkeypatch.context() as waiting, ThreadPoolExecutor(1) as thread:
        waiting.setattr("marless.app.training._begun", job_that_waits)
        other = thread.submit(marless.train, SMALL, in_process=first)
        try:
            begun.wait()
            with pytest.raises(UnavailableError, match="is training another job"):
                marless.train(SMALL, in_process=second)
        finally:
            may_end.set()
        other.result()
    assert here().state == "SUCCEEDED"


def test_the_directory_may_change_meanwhile(monkeypatch, place):
    train = local.train

    def moved(*given: object, **more: object) -> object:
        monkeypatch.chdir("/")
        return train(*given, **more)

    monkeypatch.setattr(local, "train", moved)
    result = here()
    assert result.folder.parent == place / "runs"
    assert result.team.agents == ("agent_0", "agent_1")


@pytest.mark.parametrize("schedule", ["synchronous", "pipelined"])
def test_a_job_goes_on_to_the_weights_of_one_that_never_stopped(schedule):
    given = {"in_process": True, "progress": False}
    whole = marless.train(SMALL | {"schedule": schedule}, set={"stop.rounds": 6}, **given)
    marless.train(SMALL | {"schedule": schedule}, job="halves", **given)
    halves = marless.train(resume="halves", set={"stop.rounds": 6}, **given)
    check_same(halves.team, whole.team)
    assert list(halves.rounds["round"]) == [1, 2, 3, 4, 5, 6]


MISTAKES = {
    "nothing": ({}, "marless.train: give a job"),
    "both": ({"spec": SMALL, "resume": "x"}, "marless.train: give a job"),
    "an id to resume": ({"resume": "x", "job": "y"}, r"marless.train: job= names a new job"),
    "no job": ({"spec": 3}, "a job is a name, a file, a mapping or a JobSpec, got 3"),
    "an unknown name": ({"spec": "mpe/simple_spred"}, "did you mean 'mpe/simple_spread'"),
    "an unknown setting": ({"spec": SMALL, "set": {"algorithm.learning": 1}}, "spec: algorithm.learning"),
    "no setting": ({"spec": SMALL, "set": {"": 1}}, "set: '=1': write it as section.field=value"),
    "settings that are no mapping": ({"spec": SMALL, "set": ["seed=1"]}, r"set= is a mapping of settings by name"),
    "workers that are no number": ({"spec": SMALL, "workers": "2", "in_process": True}, "workers='2': give a number"),
    "a value that is none": ({"spec": SMALL, "set": {"seed": object()}}, "set: seed is <object object"),
    "a setting of a job that is there": ({"resume": "x", "set": {"seed": 1}}, "set: seed: only stop rules"),
    "workers of services": ({"spec": SMALL, "workers": 2}, "workers= is for in_process=True"),
    "too many workers": ({"spec": SMALL, "workers": 999, "in_process": True}, "give a number from 0 to 256"),
    "a bucket": ({"spec": SMALL, "runs": "s3://x/y"}, "is a place in a bucket; give a directory"),
    "an id that is none": ({"spec": SMALL, "job": "a b"}, "job id 'a b': use lower-case letters"),
    "an id that is taken": ({"spec": SMALL, "job": "taken"}, "exists already"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_with_one_sentence(mistake):
    Path("runs/taken").mkdir(parents=True)
    arguments, sentence = MISTAKES[mistake]
    with pytest.raises(SpecError, match=sentence) as caught:
        marless.train(**{"in_process": "workers" not in arguments} | arguments)
    assert "\n" not in str(caught.value)
    assert [path.name for path in Path("runs").iterdir()] == ["taken"]


def test_an_interrupted_job_may_come_to_its_end_before_it_is_asked_for(monkeypatch):
    """A job that was killed between its last round and its end needs but a moment more."""
    command = [sys.executable, "-m", "marless", "train", "job.yaml", "--in-process", "--job", "late"]
    variables = os.environ | {"MARLESS_FAILPOINT": "coordinator.status.before:3"}
    killed = subprocess.run(command, env=variables, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    [before] = recorded.unfinished(Path("runs"))
    assert not before.cancelling
    present = AsyncClient.get

    async def late(client: AsyncClient, job: str) -> Job:
        async with aclosing(client.watch(job)) as events:
            async for _ in events:
                pass
        return await present(client, job)

    monkeypatch.setattr(AsyncClient, "get", late)
    result = marless.train(resume="late", in_process=True, progress=False)
    assert (result.state, result.reason) == ("SUCCEEDED", "4 rounds done")


def test_what_cannot_be_resumed():
    with pytest.raises(NotFoundError, match="contains no job"):
        marless.train(resume="nope", in_process=True)
    done = here()
    with pytest.raises(JobStateError):
        marless.train(resume=done.job, in_process=True)
    more = marless.train(resume=done.job, set={"stop.rounds": 6}, in_process=True, progress=False)
    assert more.summary["rounds"] == 6
    check_same(more.team, here(set={"stop.rounds": 6}).team)


def test_a_job_that_fails_is_an_error_with_its_traceback(monkeypatch, place):
    (place / "broken.py").write_text(CORRIDOR.replace("self.t += 1 ", "self.t += 1 // 0 "))
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("MARLESS_ENV_MODULES", "broken")
    with pytest.raises(JobStateError, match=r"^job tiny-\S+ failed: .*ZeroDivisionError.*; its log is ") as caught:
        here(set={"env": "pettingzoo/broken:Corridor"})
    assert "\n" not in str(caught.value)
    assert "self.t += 1 // 0" in caught.value.__notes__[0]


PROGRAM = """
import sys, marless, psutil, signal
try:
    marless.train("job.yaml", set={"stop.rounds": 1_000_000}, job="stopped", in_process=sys.argv[1] == "here")
except KeyboardInterrupt as error:
    print(error)
print(psutil.Process().children(recursive=True), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize(
    ("where", "times"),
    [
        ("here", 1),
        ("here", 2),
        ("services", 1),
        pytest.param("services", 2, marks=pytest.mark.slow),  # test_train.py has the second Ctrl-C of services
    ],
)
def test_what_was_interrupted_says_how_to_continue_it(where, times):
    command = [sys.executable, "-c", PROGRAM, where]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = []
    for line in running.stderr:
        said.append(line)
        if line.startswith("round "):
            running.send_signal(signal.SIGINT)
            break
    for line in running.stderr if times > 1 else ():
        if "interrupted: the job ends" in line:  # the first one has been noticed
            running.send_signal(signal.SIGINT)
            break
    out, rest = running.communicate(timeout=100)
    assert running.returncode == 0, (said, rest)
    told, left = out.splitlines()
    assert told.startswith("interrupted")
    assert told.endswith("`marless.train(resume='stopped')` continues it")
    assert left == "[] True"
    rounds = len(Path("runs/stopped/rounds.jsonl").read_text().splitlines())
    result = marless.train(resume="stopped", set={"stop.rounds": rounds + 2}, in_process=True, progress=False)
    check_same(result.team, here(set={"stop.rounds": rounds + 2}).team)


class Cell:
    """IPython as a notebook's kernel has it: what is displayed can be replaced."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.display = SimpleNamespace(display=self._display)

    def get_ipython(self) -> SimpleNamespace:
        return SimpleNamespace(kernel=self)

    def _display(self, what: object, *, display_id: bool) -> Cell:
        assert display_id
        self.update(what)
        return self

    def update(self, what: object) -> None:
        self.shown.append(what._repr_html_())


def test_a_notebook_shows_a_bar_and_the_curve(monkeypatch, capfd):
    cell = Cell()
    monkeypatch.setitem(sys.modules, "IPython", cell)
    result = marless.train(SMALL, in_process=True, job="shown")
    first, *_, last = cell.shown
    assert first == '<div>shown <progress value="0.0000" max="1"></progress> starting</div>'
    assert last.startswith('<div>shown <progress value="1.0000" max="1"></progress> round 4 of 4 · 160 env steps')
    assert capfd.readouterr() == ("", "")
    text = result._repr_html_()
    assert text.startswith('<img alt="training curve of shown" src="data:image/png;base64,iVBOR')
    assert f"<td>{result.greedy_return:,.2f} ± " in text
    (result.folder / "curve.png").unlink()  # as without matplotlib
    assert f"<pre>   env steps       greedy\n          80 {result.rounds['greedy_return'][1]:>12,.2f}" in (
        result._repr_html_().replace("−", "-")
    )
    assert "SUCCEEDED" in repr(result)


def test_importing_marless_stays_cheap():
    program = "import sys, marless; dir(marless); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not {"numpy", "typer", "grpc", "torch", "pydantic", "asyncio"} & set(done.stdout.split())
    assert {"Result", "Team", "load_policy", "train"} <= set(dir(marless))
