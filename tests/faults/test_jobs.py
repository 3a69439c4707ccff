"""A job that is killed, paused and cut apart comes to the same, round by round and bit by bit."""

import pytest
import pytest_asyncio

from marless.core import failpoint
from tests.faults import (
    asynchronous_kills,
    changing_groups,
    clocks,
    failpoints,
    job_kills,
    mid_update,
    partitions,
    paused_processes,
    remembering,
)
from tests.faults.results import undisturbed
from tests.faults.rig import running_rig

pytestmark = pytest.mark.timeout(300)
ROUNDS, FEWER_ROUNDS = 60, 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory):
    async with running_rig(tmp_path_factory.mktemp("rig") / "rig") as rig:
        yield rig


@pytest.fixture(scope="module", params=["synchronous", "pipelined"])
def scheduled(rig, request):
    """The rig with the small job under each schedule."""
    return rig.under(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference(scheduled):
    return await undisturbed(scheduled, ROUNDS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def synchronous_reference(rig):
    return await undisturbed(rig, ROUNDS)


@pytest.mark.asyncio(loop_scope="module")
async def test_kills_of_everything(scheduled):
    reference = await undisturbed(scheduled, FEWER_ROUNDS)
    figures = await job_kills.run(scheduled, 0, kills=8, rounds=FEWER_ROUNDS, reference=reference)
    assert figures["kills"] == 8


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "document", [asynchronous_kills.ASYNCHRONOUS, asynchronous_kills.OFF_POLICY], ids=lambda each: each["name"]
)
async def test_kills_of_everything_in_an_asynchronous_job(rig, document):
    figures = await asynchronous_kills.run(rig, 0, kills=8, versions=FEWER_ROUNDS, document=document)
    assert figures["gradients applied"] >= FEWER_ROUNDS


@pytest.mark.asyncio(loop_scope="module")
async def test_kills_of_the_store_between_aggregation_and_publish(rig):
    figures = await asynchronous_kills.at_aggregations(rig, 0, kills=4, versions=2 * FEWER_ROUNDS)
    assert figures["kills"] == 4


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_kills_of_the_coordinator_around_each_durable_write(scheduled, reference):
    names = failpoints.of(failpoints.IN_ROUNDS + failpoints.ONCE_A_LIFE)
    await failpoints.in_rounds(scheduled, 0, kills=len(names), rounds=ROUNDS, reference=reference)


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_kills_of_the_coordinator_while_it_puts_a_checkpoint_back(scheduled, reference):
    await failpoints.on_loss(scheduled, 0, kills=3, rounds=ROUNDS, reference=reference)


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_kills_of_the_coordinator_while_it_takes_a_job_in(rig):
    await failpoints.on_submit(rig, 0, kills=2)


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", ["actor.carry.after", "learner.publish.after", "param_store.publish.after"])
async def test_kills_of_others_around_a_publish(scheduled, reference, name):
    await failpoints.elsewhere(scheduled, 0, name, kills=1, rounds=ROUNDS, reference=reference)


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_kills_where_groups_change(rig):
    changing, same = await changing_groups.prepared(rig, 12)
    await failpoints.in_rounds(changing, 0, kills=4, rounds=12, reference=same)


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_kills_of_learners_that_remember_past_rounds(rig):
    figures = await remembering.run(rig, 0, kills=2, rounds=14, points=["learner.publish.before"])
    assert [each["kills"] for each in figures] == [2, 1]


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("prepare", "moments"), [(mid_update.of_two_scopes, ("half", "twice")), (mid_update.that_remembers, ("between",))]
)
async def test_kills_of_the_coordinator_in_mid_update(rig, prepare, moments):
    rounds = 15
    subject = await prepare(rig, rounds)
    figures = await mid_update.run(subject, 0, moments, times=len(moments), rounds=rounds)
    assert figures["kills"] == len(moments) + 1


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_a_coordinator_and_a_learner_that_were_paused(scheduled, reference):
    await paused_processes.run(scheduled, 0, times=1, rounds=ROUNDS, reference=reference)


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_lines_that_are_cut(synchronous_reference, tmp_path):
    await partitions.run(tmp_path / "rig", lengths_s=[0.3], rounds=ROUNDS, reference=synchronous_reference)


@pytest.mark.slow  # `make faults` does it at full size
@pytest.mark.asyncio(loop_scope="module")
async def test_clocks_that_jump(synchronous_reference, tmp_path):
    await clocks.run(tmp_path, 0, jumps=3, rounds=ROUNDS, reference=synchronous_reference)


def test_every_failpoint_is_tried():
    places = failpoints.IN_ROUNDS + failpoints.ONCE_A_LIFE + failpoints.ON_LOSS
    places += failpoints.ON_SUBMIT + failpoints.AT_THE_END + failpoints.AGGREGATING
    assert set(failpoints.of(places + failpoints.ELSEWHERE)) == set(failpoint.NAMES)
