"""Learners that are kept between their tasks count in a GPU's memory; the oldest are discarded first."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from marless.core.errors import SpecError, UnavailableError
from marless.jobs.spec import parse, spaces_to_json
from marless.learning.algos.training.devices import DeviceMemory, memory_needed
from marless.learning.envs import registry as environments
from marless.rpc.v1 import common_pb2
from marless.rpc.v1 import learner_pool_pb2 as pb
from marless.services.learner_pool import learner
from marless.services.learner_pool.learner import Learning

SPEC = parse({"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}, "job")
SPACES = spaces_to_json(environments.spaces(SPEC.env.name, SPEC.env.options))


class Memory(DeviceMemory):
    """One with room for so many learners."""

    def __init__(self, room: int) -> None:
        super().__init__(1.0)
        self.room = room
        self.made: list[weakref.ref] = []

    def is_short(self, device):
        return sum(each() is not None for each in self.made) > self.room


class Store:
    """A store without versions, which takes none: tasks end once their learner is made and has room."""

    async def list(self, job):
        raise UnavailableError("no store")


@pytest.fixture
def without_collector():
    gc.disable()  # or it could come first
    yield
    gc.enable()


@pytest.fixture
def memory(monkeypatch, without_collector):
    memory = Memory(2)
    made = learner._Held

    def noted(given, *rest):
        memory.made.append(weakref.ref(given))
        return made(given, *rest)

    monkeypatch.setattr(learner, "_Held", noted)
    return memory


def task(job):
    groups = [common_pb2.Group(policy="agent_0", agents=["agent_0"])]
    return pb.LearnTask(job=job, spec_json=SPEC.to_json(), spaces_json=SPACES, groups=groups).SerializeToString()


def run(learning, job):
    with pytest.raises(UnavailableError) as told:
        asyncio.run(learning.run(task(job)))
    return str(told.value)


def jobs(learning):
    return [key[0] for key in learning._held]


def test_oldest_are_discarded_where_the_memory_is_short(tmp_path, memory):
    learning = Learning(Store(), SimpleNamespace(), tmp_path, memory)
    for job in "ab":
        run(learning, job)
    run(learning, "a")  # is the younger one now
    run(learning, "c")
    assert jobs(learning) == ["a", "c"]
    assert [each() is None for each in memory.made] == [False, True, False]
    memory.room = 0  # the task's own learner stays
    run(learning, "a")
    assert jobs(learning) == ["a"]


def test_task_without_memory_is_tried_again_without_the_learners_of_others(tmp_path, memory, monkeypatch):
    learning = Learning(Store(), SimpleNamespace(), tmp_path, memory)
    run(learning, "a")

    async def full(*_):
        with memory_needed("cuda:0"):
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learning, "_open", full)
    assert "beside the learners of other jobs, which are discarded now" in run(learning, "b")
    assert jobs(learning) == ["b"]
    assert memory.made[0]() is None
    with pytest.raises(SpecError, match="cuda:0 has too little memory for a gradient step"):
        asyncio.run(learning.run(task("b")))


@pytest.mark.parametrize(("held", "short"), [(31, False), (33, True)])
def test_memory_is_short_once_half_of_the_workers_part_is_held(monkeypatch, held, short):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=128))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held)
    assert DeviceMemory(0.5).is_short("cuda:0") is short
    assert not DeviceMemory(0.0).is_short("cpu")
