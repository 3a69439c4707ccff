"""The carries of the newest rounds' lanes, from the rollout that returned them until they are in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from marless.core.failpoint import failpoint
from marless.core.lanes import LaneRecord
from marless.rpc import carries
from marless.rpc.param_store import PolicyStore


class LanePublisher:
    """Publishes what the actors of one job have returned of their lanes; see `marless.rpc.carries`."""

    def __init__(self, job_id: str, store: PolicyStore) -> None:
        self._id = job_id
        self._store = store
        self._returned: dict[int, Mapping[LaneRecord, bytes]] = {}
        """The carries that the actors of a round have returned, of the newest two rounds."""
        self._published: tuple[int, int] | None = None
        """Epoch and round of the newest publish."""
        self._one_by_one = asyncio.Lock()

    def put(self, round_: int, carries_: Mapping[LaneRecord, bytes]) -> None:
        """Keep the carries that the actors of a round have returned."""
        before = {number: held for number, held in self._returned.items() if number == round_ - 1}
        self._returned = before | {round_: carries_}

    def interrupted(self) -> None:
        """A round has failed: the store may have lost what was published, and is given it once more."""
        self._published = None

    async def publish(self, epoch: int, round_: int) -> None:
        """Publish the carries that this round returned, unless that is done. Raises the errors of `carries.publish`."""
        # An update and the rollout of the next round may both ask for the carries of one round.
        async with self._one_by_one:
            if self._published == (epoch, round_):
                return
            failpoint("coordinator.carry.before")
            await carries.publish(self._store, self._id, epoch, round_, self._returned.get(round_, {}))
            failpoint("coordinator.carry.after")
            self._published = (epoch, round_)

    async def exist(self, lanes: Sequence[LaneRecord]) -> bool:
        """True if each of these lanes is in the store or was returned; if not, the round's rollout is to be run again.

        Another process may have ended between a rollout and the publish of its carries.
        """
        missing = [lane for lane in lanes if not any(lane in held for held in self._returned.values())]
        if not missing:
            return True
        policies = (await self._store.list(self._id)).policies
        return all(carries.is_among(policies, lane) for lane in missing)
