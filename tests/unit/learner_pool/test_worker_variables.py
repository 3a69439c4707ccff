"""The variables that a learner worker sets for its GPU before it first uses it."""

from __future__ import annotations

import asyncio
import os

import pytest

from marless.services.learner_pool import worker


class ReachedError(Exception):
    """The worker has come to where it uses its GPU."""


@pytest.mark.parametrize(("given", "cublas"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_they_are_set_before_a_gpu_is_used_whoever_has_started_the_worker(monkeypatch, given, cublas):
    found = {}

    def first_use(share):
        found.update(os.environ, share=share)
        raise ReachedError

    # Set first, so that what the worker sets is undone after the test.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given or "")
    if given is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("MARLESS_GPU", "GPU-8f7a")
    monkeypatch.setenv("MARLESS_GPU_SHARE", "0.5")
    monkeypatch.setattr(worker, "compute_side_by_side", lambda: None)
    monkeypatch.setattr(worker, "limit_memory", first_use)
    with pytest.raises(ReachedError):
        asyncio.run(worker.run(None))
    assert (found["CUBLAS_WORKSPACE_CONFIG"], found["CUDA_VISIBLE_DEVICES"]) == (cublas, "GPU-8f7a")
    assert found["share"] == 0.5
