"""A job whose agents share by the trend of their returns, through real services: what is measured, decided, resumed."""

from itertools import pairwise

import numpy as np
import pytest
import pytest_asyncio

from tests.integration.running import STEPS, created, go_on, running, spec

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENTS = tuple(f"agent_{i}" for i in range(4))
ROUNDS = 10


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates):
    async for each in running(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


def new(tmp_path, name):
    given = spec(
        env={"name": "mpe/simple_spread", "options": {"agents": len(AGENTS), "max_cycles": STEPS}},
        actors={"count": 1, "envs": 4, "steps": STEPS},
        sharing={"name": "marless", "window": 2, "threshold": 1.0, "schedule": "figure", "similarity": {"samples": 16}},
        evaluation={"every": 0, "episodes": 2, "random_episodes": 2},
        stop={"rounds": ROUNDS},
    )
    return created(tmp_path / name, given)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(cluster, tmp_path_factory):
    """Of a job that nothing befell."""
    folder = new(tmp_path_factory.mktemp("runs"), "sharing")
    run = await go_on(folder, cluster.pools)
    assert (run.status.state, run.status.reason) == ("SUCCEEDED", f"{ROUNDS} rounds done")
    return folder


def memory(record):
    [decision] = [each for each in record.decisions if each.kind == "sharing"]
    return decision.inputs


async def test_similarity_is_measured_in_the_rounds_before_sharing_begins_and_only_there(folder):
    records = list(folder.records())
    began = [
        then.round for then, now in pairwise(records) if memory(now)["enablings"] > memory(then)["enablings"]
    ]  # fmt: skip
    measured = [record for record in records if record.distances]
    runs = {r.round: [each for each in r.invocations if each.function == "similarity"] for r in records}
    assert began, "the job was made to begin"
    first = measured[0]
    assert first.round == began[0]
    # The last round may have been measured for a round that was not to come; 4 groups of 4 agents need no similarity.
    assert {record.round for record in measured} <= {began[0], ROUNDS - 1}
    assert [number for number, found in runs.items() if found] == [record.round for record in measured]
    [distances] = first.distances
    values = np.array(distances.values)
    assert distances.agents == AGENTS
    assert values.shape == (4, 4)
    assert (values == values.T).all()
    assert (values[~np.eye(4, dtype=bool)] > 0).any()


async def test_groups_start_from_their_member_with_the_highest_ratio_and_split_into_copies(folder):
    records = list(folder.records())
    for then, now in pairwise(records):
        if memory(now)["sharing"] and not memory(then)["sharing"]:
            for group in now.groups:
                known = {agent: then.metrics[agent]["curvature"] for agent in group.agents}
                assert group.policy == max(known, key=known.__getitem__)
        elif memory(then)["sharing"] and not memory(now)["sharing"]:
            shared = {agent: group.policy for group in then.groups for agent in group.agents}
            assert {g.policy: g.source or g.policy for g in now.groups} == shared
        else:
            assert [g.agents for g in now.groups] == [g.agents for g in then.groups]
            assert not any(group.source for group in now.groups)
    sizes = [len(record.groups) for record in records]
    assert min(sizes) == 2
    assert sizes[0] == 4
    assert 4 in sizes[sizes.index(2) :], "it has split"
