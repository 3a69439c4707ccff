"""What the store keeps of a gradient: its key, its report, and nothing that is not finite."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from marless.core.errors import NotFoundError, SpecError
from marless.learning.aggregation import gradient_file
from marless.learning.nets.acting import ActingState
from marless.learning.nets.serial import encode_acting
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from marless.services.learner_pool import stored_results


def version(policy: str, number: int) -> common_pb2.PolicyVersion:
    return common_pb2.PolicyVersion(policy=policy, version=number)


def task(
    *versions: tuple[str, int], learner: int = 3, rollouts: tuple[int, ...] = (8, 2)
) -> learner_pool_pb2.LearnTask:
    return learner_pool_pb2.LearnTask(
        job="j",
        scope=1,
        groups=[common_pb2.Group(policy="a", agents=["a"], source=version("b", 7))],
        versions=[version(*each) for each in versions],
        gradient=learner_pool_pb2.GradientTask(learner=learner, rollouts=rollouts),
    )


def test_the_key_names_rollouts_in_order_and_versions_in_any():
    key = stored_results.gradient_request_id(task(("b", 7), ("critic", 4)))
    assert key == "j/gradient/3/1/8,2@7,7,4"
    assert key == stored_results.gradient_request_id(task(("critic", 4), ("b", 7)))
    assert key != stored_results.gradient_request_id(task(("critic", 5), ("b", 7)))
    assert key != stored_results.gradient_request_id(task(("b", 7), ("critic", 4), rollouts=(2, 8)))


def result() -> learner_pool_pb2.LearnResult:
    run = common_pb2.Invocation(id="j/gradient-3/policy/a", function="policy", name="a", start_s=0.1, after=["x/y"])
    made = learner_pool_pb2.LearnResult(functions=[run])
    made.metrics["a"].values.update({"entropy": 0.1 + 0.2, "kl": float("nan")})
    return made


class Store:
    """Holds one publish."""

    def __init__(self, write) -> None:
        self.write = write

    async def list(self, job):
        held = SimpleNamespace(head=SimpleNamespace(version=5), req_id=self.write.req_id)
        return SimpleNamespace(policies={self.write.policy: held})

    async def get(self, job, versions, parts):
        assert versions == {self.write.policy: 5}
        return {self.write.policy: SimpleNamespace(blobs=self.write.blobs)}


def test_what_was_published_is_found_with_its_report():
    found = {"a": {"policy": np.arange(3, dtype=np.float32), "critic.returns": np.ones((1, 3))}}
    write = stored_results.gradient_write(task(("b", 7)), found, result())
    assert (write.policy, write.expected) == ("gradient/3/1", 0)
    np.testing.assert_array_equal(gradient_file.decode(write.blobs["gradient"])["a"]["policy"], [0, 1, 2])
    kept = asyncio.run(stored_results.published_gradient(Store(write), task(("b", 7))))
    assert kept.gradient == version("gradient/3/1", 5)
    assert list(kept.functions) == list(result().functions)
    assert str(kept.metrics) == str(result().metrics)
    assert asyncio.run(stored_results.published_gradient(Store(write), task(("b", 7), ("c", 1)))) is None
    assert asyncio.run(stored_results.published_gradient(Store(write), task(("b", 7), learner=4))) is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_refused(value):
    found = {"a": {"policy": np.zeros(2, np.float32), "critic": np.array([0, value], np.float32)}}
    with pytest.raises(SpecError, match=r"gradient of 'a' has NaN or infinite values \(critic\).*lower algorithm.lr"):
        stored_results.gradient_write(task(), found, result())


def test_equal_peers_are_read_once_and_versions_that_are_gone_are_left_out():
    asked = []

    async def get(job, versions, parts):
        asked.append(versions)
        if 9 in versions.values():
            raise NotFoundError("gone")
        return {
            name: SimpleNamespace(blobs={"acting": encode_acting(ActingState({"w": np.array([number])}, {}))})
            for name, number in versions.items()
        }

    given = [
        learner_pool_pb2.VersionSet(versions=[version(*each) for each in versions])
        for versions in (
            [("a", 1), ("b", 2), ("critic", 5)],
            [("b", 2), ("a", 1), ("critic", 6)],
            [("a", 9), ("b", 3)],
            [("a", 9)],
            [("critic", 1)],
            [],
        )
    ]
    found = asyncio.run(stored_results.peer_weights(SimpleNamespace(get=get), "j", given, ["a", "b"]))
    assert [{name: int(arrays["w"][0]) for name, arrays in each.items()} for each in found] == [
        {"a": 1, "b": 2},
        {"b": 3},
    ]
    assert asked.count({"a": 1, "b": 2}) == 1
