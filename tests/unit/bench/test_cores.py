"""The benchmark of many cores: which it uses, and what its rows say."""

import os

import pytest

from bench import cores


def test_it_uses_the_cores_that_there_are(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert cores.cores_to_use(16) == (1, 2, 4)
    assert cores.cores_to_use(2) == (1, 2)


@pytest.mark.parametrize("path", [None, "/a/folder"])
def test_a_process_has_only_its_cores_and_then_all_again(monkeypatch, path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path:
        monkeypatch.setenv("PYTHONPATH", path)
    before, variables = os.sched_getaffinity(0), dict(os.environ)
    with cores.bound_to(1):
        assert len(os.sched_getaffinity(0)) == 1
        assert os.environ["MARLESS_ACTOR_WORKERS"] == os.environ["BENCH_RUNNERS"] == "1"
    assert (os.sched_getaffinity(0), dict(os.environ)) == (before, variables)


def test_rows_and_headline_compare_with_the_fewest_cores():
    rates = {("slow", "marless"): {1: [10.0, 20.0, 30.0], 4: [70.0, 90.0, 80.0]}}
    found = cores.row("slow", "marless", rates["slow", "marless"])
    assert (found["× on 1"], found["× on 4"]) == (1.0, 4.0)
    assert cores.headline(rates) == {"speedup": {"slow": 4.0}, "cores": 4}
