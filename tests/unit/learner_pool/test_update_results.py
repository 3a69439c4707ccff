"""What an update reported, kept beside the versions it made: it comes back as it was, of whatever functions."""

import asyncio
from types import SimpleNamespace

from marless.rpc import param_store
from marless.rpc.v1 import common_pb2
from marless.services.learner_pool import stored_results

NAMES = ("a", "b", "mixer", "replay.team")


class Store:
    """Holds the parts of one round of job `j`."""

    def __init__(self, parts: dict[str, bytes]) -> None:
        self.parts = parts

    async def list(self, job: str) -> SimpleNamespace:
        head = SimpleNamespace(version=5)
        made = {name: SimpleNamespace(req_id=param_store.publish_key(job, 3, name), head=head) for name in self.parts}
        return SimpleNamespace(policies=made)

    async def get(self, job: str, versions: dict[str, int], parts: tuple[str, ...]) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(blobs={parts[0]: self.parts[name]}) for name in versions}


def test_functions_metrics_and_distances_of_a_team_come_back_with_its_policies_names_alone():
    functions = [
        common_pb2.Invocation(id="j/3/post_process/team", function="post_process", name="team", start_s=1, end_s=2),
        common_pb2.Invocation(
            id="j/3/mixer/mixer",
            function="mixer",
            name="mixer",
            vcpu_s=0.5,
            pass_cpu_s=0.25,
            after=["post_process/team"],
        ),
        *(
            common_pb2.Invocation(id=f"j/3/policy/{name}", function="policy", name=name, after=["mixer/mixer"])
            for name in "ab"
        ),
    ]
    distances = [common_pb2.Distances(agents=["x", "y"], values=[0, 1, 1, 0]) for _ in range(2)]
    metrics = {"a": {"td_loss": 1.5}, "replay.team": {"size": 30.0}}
    store = Store(stored_results.encode_reports(NAMES, metrics, functions, distances))
    found = asyncio.run(stored_results.published_update(store, "j", 3, ["a", "b"]))
    assert {version.policy: version.version for version in found.versions} == dict.fromkeys(NAMES, 5)
    assert sorted(found.functions, key=lambda each: each.id) == sorted(functions, key=lambda each: each.id)
    assert list(found.distances) == distances
    assert {name: dict(found.metrics[name].values) for name in metrics} == metrics


def test_a_round_that_is_not_published_whole_is_none():
    parts = stored_results.encode_reports(NAMES, {}, [])
    assert asyncio.run(stored_results.published_update(Store({"a": parts["a"]}), "j", 3, ["a", "b"])) is None
    del parts["mixer"]
    assert asyncio.run(stored_results.published_update(Store(parts), "j", 3, ["a", "b"])) is None
