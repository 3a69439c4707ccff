"""The order in which functions run, on one thread and on several."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from marless.core.group import FunctionKind, FunctionNode, Group
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.training.passes import ONE_THREAD, UPDATE_STEPS, Graph, Pass, threads_for

NODES = (
    FunctionNode("post_process", "walker"),
    FunctionNode("critic", "x", after=("post_process/walker",)),
    FunctionNode("policy", "x", after=("post_process/walker",)),
    FunctionNode("policy", "y", after=("post_process/walker",)),
    FunctionNode("curvature", "x", after=("policy/x",)),
)
THREADS = pytest.mark.parametrize("threads", [1, 2, 8])


def _passes(note: Callable[[str], None]) -> list[Pass[str]]:
    wanted: list[tuple[FunctionKind, tuple[str, ...]]] = [
        ("post_process", ("walker",)),
        ("critic", ("x",)),
        ("policy", ("x", "y")),
        ("curvature", ("x",)),
    ]

    def compute(function: str) -> Callable[[], str]:
        def run() -> str:
            note(function)
            return function.upper()

        return run

    return [Pass(function, names, compute(function)) for function, names in wanted]


@THREADS
def test_passes_run_after_those_they_wait_for_and_answer_in_order(threads: int) -> None:
    for _ in range(20):
        seen: list[str] = []
        graph = Graph(NODES, threads=threads)
        assert graph.run(_passes(seen.append)) == ["POST_PROCESS", "CRITIC", "POLICY", "CURVATURE"]
        assert seen[0] == "post_process"
        assert seen.index("policy") < seen.index("curvature")
        runs = graph.runs()
        assert [(run.function, run.name) for run in runs] == [(node.function, node.name) for node in NODES]
        assert runs[0].end_s <= runs[1].start_s
        assert runs[2].end_s <= runs[4].start_s


def test_what_waits_for_nothing_of_one_another_runs_side_by_side() -> None:
    met = threading.Barrier(2, timeout=30)  # breaks, and the test fails, unless both passes run at once
    side_by_side = [
        Pass("critic", ("x",), lambda: met.wait() >= 0),
        Pass("policy", ("x",), lambda: met.wait() >= 0),
    ]
    assert Graph(NODES, threads=2).run(side_by_side) == [True, True]


@THREADS
def test_errors_of_passes_come_through_and_what_waits_for_them_does_not_run(threads: int) -> None:
    seen: list[str] = []

    def note(function: str) -> None:
        seen.append(function)
        if function == "policy":
            raise KeyError(function)

    with pytest.raises(KeyError, match="policy"):
        Graph(NODES, threads=threads).run(_passes(note))
    assert "curvature" not in seen


def test_gradient_steps_add_up() -> None:
    graph = Graph(NODES[:1])
    for _ in range(3):
        graph.run(_passes(lambda _: None)[:1])
    (run,) = graph.runs()
    assert run.end_s >= run.start_s


def test_what_ran_must_be_what_was_declared() -> None:
    passes = _passes(lambda _: None)
    with pytest.raises(ValueError, match=r"\['mixer/x'\] are not declared"):
        Graph(NODES).run([Pass("mixer", ("x",), str)])
    with pytest.raises(ValueError, match="not listed before it"):
        Graph(NODES).run(passes[::-1])
    graph = Graph(NODES)
    graph.run(passes[:3])
    with pytest.raises(ValueError, match=r"\['curvature/x'\] are declared, but did not run"):
        graph.runs()


def test_little_work_and_gpus_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: 8)
    groups = (Group("x", ("a", "b")), Group("y", ("c",)))

    def threads(parameters: int, env_steps: int, minibatches: int = 1, device: str = "cpu") -> int:
        inputs = cast("RoundInput", SimpleNamespace(groups=groups, sampled_steps=env_steps))
        return threads_for(torch.device(device), parameters, inputs, minibatches)

    most = ONE_THREAD // (3 * 80 + 2 * UPDATE_STEPS)
    assert threads(most, 80) == threads(most, 320, minibatches=4) == threads(100 * most, 80, device="cuda") == 1
    assert threads(most + 1, 80) == threads(most, 84) == threads(most, 320, minibatches=2) == 8
