"""The carries of a round's lanes, from the rollout that returned them until they are in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marless.failpoint import reach
from marless.record import LaneRecord
from marless.rpc import carries
from marless.rpc.param_store import ParamStore


class Lanes:
    """Publishes what the actors of one job have returned of their lanes; see `marless.rpc.carries`."""

    def __init__(self, job_id: str, store: ParamStore) -> None:
        self._id = job_id
        self._store = store
        self.returned: Mapping[LaneRecord, bytes] = {}
        """The carries that the actors of the present round have returned."""

    async def publish(self, epoch: int, round_: int) -> None:
        """Publish the returned carries; idempotent. Raises the errors of `carries.publish`."""
        reach("coordinator.carry.before")
        await carries.publish(self._store, self._id, epoch, round_, self.returned)
        reach("coordinator.carry.after")

    async def exist(self, lanes: Sequence[LaneRecord]) -> bool:
        """True if each of these lanes is in the store or was returned; if not, the round's rollout is to be run again.

        Another process may have ended between a rollout and the publish of its carries.
        """
        missing = [lane for lane in lanes if lane not in self.returned]
        if not missing:
            return True
        policies = (await self._store.list(self._id)).policies
        return all(carries.is_among(policies, lane) for lane in missing)
