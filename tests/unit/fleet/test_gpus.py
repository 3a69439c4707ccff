"""GPUs: which worker gets which, how much of its memory, and the alarm of a machine whose GPU nobody uses."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import pytest

from marless.core import machine
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import worker_figures
from marless.fleet.gpus import WORKERS_PER_GPU, GpuShare, GpuShares, visible_gpus
from marless.fleet.launchers.local import LocalLauncher
from marless.rpc.v1 import common_pb2 as pb
from tests.unit.fleet.test_local_launcher import launched, program

LEARNERS = {WORKERS_PER_GPU: "0"}


def claimed(shares, *workers):
    found = [shares.claim(worker) for worker in workers]
    return [each and (each.gpu, each.memory) for each in found]


def test_each_worker_has_the_gpu_that_fewest_use_and_an_equal_part_of_it():
    shares = GpuShares.among(("0", "1"), LEARNERS, workers=4)
    assert claimed(shares, "a", "b", "c", "d") == [("0", 0.5), ("1", 0.5), ("0", 0.5), ("1", 0.5)]
    shares.release("b")
    assert claimed(shares, "e", "a") == [("1", 0.5), ("0", 0.5)]  # one that is started again keeps its place


@pytest.mark.parametrize(
    ("settings", "workers", "memory"),
    [(LEARNERS, 3, 0.5), (LEARNERS, 2, 1.0), (LEARNERS, 0, 1.0), ({WORKERS_PER_GPU: "4"}, 1, 0.25)],
)
def test_parts_follow_from_the_number_of_workers_or_are_given(settings, workers, memory):
    assert claimed(GpuShares.among(("0", "1"), settings, workers), "a") == [("0", memory)]


@pytest.mark.parametrize(("gpus", "settings"), [((), LEARNERS), (("0",), {})])
def test_no_share_without_a_gpu_and_none_for_actors(gpus, settings):
    assert claimed(GpuShares.among(gpus, settings, 2), "a", "b") == [None, None]


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({}, ("0", "1", "2")),
        ({"CUDA_VISIBLE_DEVICES": "2, GPU-8f7a"}, ("2", "GPU-8f7a")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
    ],
)
def test_gpus_are_those_that_a_scheduler_names_or_those_with_device_files(environment, gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_DEVICE_FILES", tmp_path)
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus(environment) == gpus


async def test_local_workers_are_told_their_share(tmp_path):
    visible = os.environ | {"CUDA_VISIBLE_DEVICES": "3,5"}
    made = dataclasses.replace(program(tmp_path), environment=visible, settings=LEARNERS, most=4)
    launcher = LocalLauncher(made)
    try:
        found = [(await launched(launcher, tmp_path, worker))["variables"] for worker in ("one", "two")]
        assert [GpuShare(each["MARLESS_GPU"], float(each["MARLESS_GPU_SHARE"])) for each in found] == [
            GpuShare("3", 0.5),
            GpuShare("5", 0.5),
        ]
        await launcher.drain("one", 0.0)
        assert (await launched(launcher, tmp_path, "three"))["variables"]["MARLESS_GPU"] == "3"
    finally:
        await launcher.close()


@pytest.mark.parametrize(("device", "gpus", "alarm"), [("cpu", 1, 1), ("cuda:0", 1, 0), ("cpu", 0, 0)])
async def test_gpu_that_nobody_uses_is_an_alarm(device, gpus, alarm):
    dispatcher = Dispatcher()

    async def send(message: pb.PoolMessage) -> None:
        await asyncio.sleep(0)

    worker = dispatcher.arrive(
        pb.WorkerHello(worker="one", ticket=dispatcher.launching("one"), device=device, gpus=gpus, vcpus=1), send
    )
    [metric] = [each for each in worker_figures(dispatcher) if each.name == "marless_workers_without_their_gpu"]
    assert metric.samples[0].value == alarm
    dispatcher.depart(worker)
