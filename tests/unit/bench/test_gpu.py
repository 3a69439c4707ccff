"""The benchmark of GPUs: it measures what it says, and tells where there is none."""

import sys
import time

import pytest
import torch

from bench import gpu, harness

SMALL = gpu.load(3, {"hidden": (8,)}, 16, None)


def test_every_way_to_take_a_step_is_measured():
    found = gpu.measured(SMALL, "cpu", 2)
    assert found.keys() == {"stacked", "one by one", "CPU, 2 cores"}
    assert all(each > 0 for each in found.values())


def test_cores_have_equal_parts_of_the_policies(monkeypatch):
    parts = []
    monkeypatch.setattr(gpu.GradientLoad, "seconds", lambda self, device: parts.append(len(self.agents.agents)) or 1.0)
    assert gpu.on_cores(gpu.load(8, {"hidden": (8,)}, 16, None), 3) == 1.0
    assert sorted(parts) == [2, 3, 3]


def test_row_compares_with_the_quickest_way_on_the_device():
    runs = [{"stacked": 2.0, "captured": 0.5, "one by one": 4.0, "CPU, 2 cores": 9.0}]
    found = gpu.row("small", runs)
    assert (found["× one by one"], found["× CPU, 2 cores"]) == (8.0, 18.0)
    assert found["captured, ms"] == {"median": 0.5, "min": 0.5, "max": 0.5}


def test_process_that_is_late_is_refused():
    with pytest.raises(harness.BenchError, match="to start"):
        gpu.steps_per_s(SMALL, "cpu", time.time() - 1)


def test_machine_without_a_gpu_is_told_so(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="sees no GPU"):
        gpu.main()
