"""Carries of lanes are published once, and once more after a failure, in which the store may have lost them."""

from types import SimpleNamespace

from marless.core.group import LaneRecord
from marless.services.coordinator.state.pending_rollouts import LanePublisher


async def test_carries_are_published_again_after_a_failure():
    published = []

    async def publish(job, epoch, round_, writes):
        published.append((epoch, round_, [write.policy for write in writes]))

    lanes = LanePublisher("job", SimpleNamespace(publish=publish))
    lanes.put(2, {LaneRecord(lane=0, version=3, digest="d"): b"carry"})
    await lanes.publish(1, 2)
    await lanes.publish(1, 2)
    assert published == [(1, 2, ["lane/0"])]
    lanes.interrupted()
    await lanes.publish(1, 2)
    assert published == 2 * [(1, 2, ["lane/0"])]
