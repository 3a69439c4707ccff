"""Ctrl-C, however often: the services are stopped to the end before the command ends."""

import asyncio
import json
import signal
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from marless.app.cli import train
from marless.app.client import JobState
from marless.jobs import spec as specs

JOB = SimpleNamespace(state=JobState.SUCCEEDED, rounds=0)
SPEC = specs.parse({"env": {"name": "mpe/simple_spread"}, "algorithm": {"name": "ippo"}, "stop": {"rounds": 1}}, "job")


async def ctrl_c(times: int, number: int = signal.SIGINT) -> None:
    """As often as that, and each has been noticed."""
    for _ in range(times):
        signal.raise_signal(number)
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)


@dataclass
class Stack:
    """Services that are interrupted while they start, work or stop, so many times."""

    starting: int = 0
    working: int = 0
    stopping: int = 0
    data_at_the_end: list[bool] = field(default_factory=list)
    coordinator: str = "unix:/nowhere"

    def __call__(self, *, data, **_):
        self.data = data
        return self

    async def __aenter__(self):
        self.data.mkdir(parents=True)
        try:
            await ctrl_c(self.starting)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_):
        await ctrl_c(self.stopping)
        self.data_at_the_end.append(self.data.exists())

    async def failed(self):
        await asyncio.Event().wait()


@dataclass
class Client:
    """Of a coordinator whose job ends at once, or never."""

    stack: Stack

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_): ...

    async def submit(self, *_, **__): ...

    async def cancel(self, _): ...

    async def watch(self, *_, **__):
        await ctrl_c(self.stack.working)
        if self.stack.working > 1:
            await asyncio.Event().wait()
        yield SimpleNamespace(record=None, job=JOB)


def run(stack, monkeypatch, tmp_path):
    monkeypatch.setattr(train, "LocalStack", stack)
    monkeypatch.setattr(train, "AsyncClient", lambda *_, **__: Client(stack))
    show = train.Show(record=lambda _: None, trouble=lambda _: None)
    return train.train(SPEC, job_id="job", runs=tmp_path, show=show)


@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_services_that_stop_after_the_job_are_not_cut_short(monkeypatch, tmp_path, times):
    stack = Stack(working=min(times, 1), stopping=times)
    outcome = run(stack, monkeypatch, tmp_path)
    assert (outcome.job, outcome.interrupted) == (JOB, times > 0)
    assert stack.data_at_the_end == [True]
    assert not stack.data.exists()


@pytest.mark.parametrize("when", ["starting", "working"])
def test_the_second_ctrl_c_cancels_and_the_third_does_not_cut_the_stop_short(monkeypatch, tmp_path, when):
    stack = Stack(**{when: 2}, stopping=3)
    with pytest.raises(asyncio.CancelledError):
        run(stack, monkeypatch, tmp_path)
    assert stack.data_at_the_end == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_sigterm_counts_once_and_ctrl_c_each_time():
    seen = []
    signals = train.Signals()
    with signals.around(), signals.calling(lambda: seen.append(1)):
        await ctrl_c(2, signal.SIGTERM)
        assert len(seen) == 1
        await ctrl_c(2)
        assert len(seen) == 3


@pytest.mark.parametrize(("cancelling", "calls"), [(True, ["get", "wait", "resume"]), (False, ["get"])])
def test_what_a_second_ctrl_c_left_between_cancellation_and_end_goes_on(monkeypatch, tmp_path, cancelling, calls):
    seen = []

    class Left(Client):
        async def get(self, _):
            seen.append("get")
            return SimpleNamespace(state=JobState.RUNNING, rounds=3)

        async def wait(self, _):
            seen.append("wait")
            return SimpleNamespace(state=JobState.CANCELLED, rounds=3)

        async def resume(self, _, stop):
            seen.append("resume")

    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_text(json.dumps({"state": "RUNNING", "cancelling": cancelling}))
    stack = Stack()
    monkeypatch.setattr(train, "LocalStack", stack)
    monkeypatch.setattr(train, "AsyncClient", lambda *_, **__: Left(stack))
    show = train.Show(record=lambda _: None, trouble=lambda _: None)
    train.resume("job", runs=tmp_path, stop=None, show=show)
    assert seen == calls
