"""Asynchronous jobs whose groups change: what is under way then is lost and counted, and no interruption changes more.

Each job is computed once more from its records, in one process, and must have come to the same weights.
"""

import importlib
from itertools import count, pairwise

import pytest

from marless.core.group import Group
from marless.jobs.job import prepare
from marless.jobs.schedules.events import read
from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.one_process_asynchronous import check_counts, check_same_weights
from tests.integration.running import STEPS, check_replay, created, succeeded
from tests.integration.running import spec as spec_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
_serials = count()
ROUNDS = 9
EVERYTHING = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": STEPS}},
    "actors": {"count": 3, "envs": 2, "steps": STEPS, "episodes": "fresh"},
    "algorithm": {"name": "ippo", "truncation": "least"},
    "schedule": {"name": "stellaris", "learners": 2},
    "sharing": {"name": "scripted", "period": 2},
    "scaling": "scripted",
    "stop": {"rounds": ROUNDS},
}
VDN = {"algorithm": {"name": "vdn", "warmup": 0, "batch": 8}, "schedule": "stellaris"}


def new(tmp_path, **changes) -> RunFolder:
    return created(tmp_path / f"groups-{next(_serials)}", spec_of(**EVERYTHING | changes))


def check(folder: RunFolder) -> list:
    """Its groups change every other version, together with a restart; its weights are those of its events."""
    records = list(folder.records())
    assert [len(record.groups) for record in records] == [3, 3, 1, 1, 3, 3, 1, 1, 3]
    for before, record in pairwise(records):
        kinds = [each.kind for each in read(record.aggregation.arrivals)]
        if len(before.groups) != len(record.groups):
            assert "restart" in kinds[:1]
        unused = record.versions.keys() - {group.policy for group in record.groups}
        assert {name: record.versions[name] for name in unused if name in AGENTS} == {
            name: before.versions[name] for name in unused if name in AGENTS
        }
    check_counts(prepare(folder.load()[0]), records)
    check_same_weights(folder)
    return records


AGENTS = ("agent_0", "agent_1", "agent_2")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "mappo"}},
        {"algorithm": {"name": "impact"}},
        {"schedule": {"name": "stellaris", "batch": 2, "aggregation": {"rule": "softsync", "gradients": 2}}},
        VDN,
    ],
    ids=["ippo", "joint critic", "impact", "softsync", "off-policy"],
)
async def test_services_compute_what_one_process_computes(cluster, tmp_path, changes):
    folder = new(tmp_path, **changes)
    await succeeded(cluster, folder)
    check(folder)


@pytest.mark.parametrize(
    "changes", [{}, {"algorithm": {"name": "mappo"}}, VDN], ids=["ippo", "joint critic", "updates"]
)
async def test_groups_may_have_policies_of_new_names(cluster, tmp_path, monkeypatch, changes):
    scripted = importlib.import_module("scripted")

    def merged(sharing, now, newest):
        return tuple(Group(f"all-{each.name}", each.agents, now[0].policy) for each in sharing.spaces.classes)

    monkeypatch.setattr(scripted.ScriptedSharing, "_merged", merged)
    folder = new(tmp_path, **changes)
    await succeeded(cluster, folder)
    records = list(folder.records())
    assert [record.versions.get("all-agent", 0) for record in records] == [0, 0, 1, 2, 2, 2, 3, 4, 4]
    check_same_weights(folder)


async def test_sharing_measures_how_alike_agents_are(cluster, tmp_path):
    folder = new(
        tmp_path,
        env={"name": "mpe/simple_spread", "options": {"agents": 4, "max_cycles": STEPS}},
        sharing={"name": "marless", "window": 2, "threshold": 1.0, "schedule": "figure", "similarity": {"samples": 16}},
        scaling="fixed",
        stop={"rounds": 40},
    )
    await succeeded(cluster, folder)
    records = list(folder.records())
    check_same_weights(folder)
    shared = next(record for record in records if len(record.groups) == 2)
    before = records[: shared.round]
    [distances] = before[-1].distances
    assert len(distances.agents) == 4
    assert all(distances.values[i][i] == 0 < max(distances.values[i]) for i in range(4))
    first = next(record.round for record in before if record.distances)
    assert not any(each.function == "similarity" for record in before[:first] for each in record.invocations)
    assert read(shared.aggregation.arrivals)[0].kind == "restart"


@pytest.mark.parametrize(
    ("scaling", "metric"), [("nitro", "curvature"), ("gns", "noise_scale"), ("marless", "curvature")]
)
@pytest.mark.parametrize("changes", [{}, VDN], ids=["gradients", "updates"])
async def test_scaling_policies_get_what_they_measure(cluster, tmp_path, scaling, metric, changes):
    folder = new(tmp_path, **changes, scaling=scaling, sharing="fixed", stop={"rounds": 4})
    await succeeded(cluster, folder)
    records = list(folder.records())
    check_same_weights(folder)
    assert all(record.metrics[agent][metric] == record.metrics[agent][metric] for record in records for agent in AGENTS)
    assert {each.rule for record in records for each in record.decisions if each.kind == "scaling"} == {scaling}
    if metric == "curvature":
        assert all(any(each.function == "curvature" for each in record.invocations) for record in records)


async def test_a_replay_comes_to_the_same_weights(cluster, tmp_path):
    folder = new(tmp_path)
    await succeeded(cluster, folder)
    await check_replay(cluster, folder, tmp_path / "again")
