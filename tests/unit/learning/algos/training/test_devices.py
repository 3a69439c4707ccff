"""The device of a learner: chosen by what was asked for and measured, refused, limited, and named."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from unittest import mock

import pytest
import torch

from marless.core.errors import SpecError
from marless.learning.algos.learner import Scope
from marless.learning.algos.synthetic_job import CASES
from marless.learning.algos.training import devices
from marless.learning.algos.training.devices import GradientLoad, choose_device, computed_by
from tests.simulated_device import DEVICE, Graphs, simulated_device


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A GPU")
    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: 2)


def load(case="discrete", samples=32):
    spaces = CASES[case].spaces
    return GradientLoad(CASES[case].model, spaces, Scope(0, tuple(range(len(spaces.classes))), "team"), samples)


def measured(**seconds):
    return lambda load, device: seconds[device.partition(":")[0]]


@pytest.mark.parametrize(
    ("seconds", "chosen"), [({"cuda": 0.002, "cpu": 0.010}, "cuda:0"), ({"cuda": 0.003, "cpu": 0.004}, "cpu")]
)
def test_auto_takes_the_quicker_device_and_says_why(two_gpus, seconds, chosen):
    device, why = choose_device("auto", load(), measured(**seconds))
    assert device == chosen  # two threads of the CPU train two policies at once: 5 and 2 ms
    halved = f"{seconds['cpu'] / 2 * 1e3:.3g}"
    assert why == (
        f"auto, measured: a gradient step takes {seconds['cuda'] * 1e3:.3g} ms on A GPU, {halved} ms on the CPU"
    )


def test_bfloat16_is_for_a_gpu(two_gpus):
    assert choose_device("auto", replace(load(), precision="bfloat16"), measured()) == (
        "cuda:0",
        "auto: A GPU; bfloat16 is not measured",
    )


@pytest.mark.parametrize(("asked", "gpus", "word"), [("cuda", 0, "0 GPUs"), ("cuda:2", 2, "2 GPUs")])
def test_gpu_that_does_not_exist_is_refused(monkeypatch, asked, gpus, word):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(SpecError, match=f"{asked} asked for, but torch sees {word}"):
        choose_device(asked, load(), measured())


def test_what_is_asked_for_is_not_measured(two_gpus):
    assert choose_device("cuda:1", load(), measured()) == ("cuda:1", "as configured")
    assert choose_device("cpu", load(), measured())[0] == "cpu"


@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_of_every_job_are_measured_on_both_devices(case):
    assert load(case).seconds("cpu") > 0
    with simulated_device() as transfers:
        assert load(case).seconds(DEVICE) > 0
    assert transfers["to device"] == 2  # weights and inputs, before the clock starts
    assert not transfers["to host"]
    assert not transfers["reads"]


def test_captured_steps_are_measured_where_a_job_has_them(monkeypatch):
    graphs = Graphs()
    monkeypatch.setattr(devices, "graphs_of", lambda device: graphs)
    with simulated_device():
        assert load().seconds(DEVICE) > 0
        assert not graphs.made
        assert replace(load(), captured=True).seconds(DEVICE) > 0
    assert graphs.made[0].replayed > 10


def test_share_of_memory_is_that_of_each_visible_gpu(two_gpus):
    with mock.patch("torch.cuda.set_per_process_memory_fraction") as limit:
        devices.limit_memory(1.0)
        assert not limit.called
        devices.limit_memory(0.5)
    assert limit.call_args_list == [mock.call(0.5, 0), mock.call(0.5, 1)]


def test_name_has_what_decides_the_bits():
    name = computed_by("cpu")
    assert f"torch {torch.__version__}, numpy {importlib.metadata.version('numpy')}, kernels compiled" in name


def test_memory_that_is_too_small_is_told_in_a_sentence():
    told = "cuda:0 has too little memory for a gradient step; set more"
    with pytest.raises(SpecError, match=told), devices.memory_needed("cuda:0"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
