"""What the rollouts of unrecorded rounds have left: their results, and the carries of their lanes.

Results are in memory and in pending.json; carries are in memory until they are in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from marless.core.failpoint import failpoint
from marless.core.group import LaneRecord
from marless.rpc import carries
from marless.rpc.concurrency import to_the_end
from marless.rpc.param_store import PolicyStore
from marless.services.coordinator.state.journal import Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import PendingRollout


class PendingRollouts:
    """The results of rollouts, from the round that is trained next on, without a gap."""

    def __init__(self, folder: RunFolder, journal: Journal, lanes: LanePublisher) -> None:
        self.lanes = lanes
        self._folder = folder
        self._journal = journal
        self._found: tuple[PendingRollout, ...] = ()
        self._begun: dict[int, int] = {}
        """Number of actors of rollouts that have begun since the last failure, by round."""

    def begin(self, round_: int, actors: int) -> None:
        """Note that the rollout of a round begins."""
        self._begun[round_] = actors

    def interrupted(self) -> None:
        """Rollouts that were under way have been cancelled."""
        self._begun.clear()
        self.lanes.interrupted()

    def actors(self, round_: int) -> int:
        """Number of actors of a round that is rolled out, or of which the rollout has begun; 0 for other rounds."""
        done = {pending.round: pending.actors for pending in self.found}
        return done.get(round_, 0) or self._begun.get(round_, 0)

    async def read(self) -> None:
        """Read what an earlier coordinator has left."""
        self._found = await asyncio.to_thread(self._folder.read_pending, self._journal.rounds)

    def put(self, pending: PendingRollout) -> None:
        """Add the result of the next round's rollout, or replace it and later ones, and write pending.json."""
        self._begun.pop(pending.round, None)
        self._found = (*(each for each in self.found if each.round < pending.round), pending)
        self._folder.write_pending(self._found)

    def lost(self) -> None:
        """The learner pool has lost trajectories, as after a restart: all are sampled again."""
        self._found = ()

    async def discard(self) -> None:
        """Forget all of them durably, before what replaces them is sampled and trained under the same numbers: a later
        coordinator would take the one for the other.
        """
        self._folder.write_pending(())
        await to_the_end(self._folder.sync_pending)
        # Last: after a write that failed, the next attempt must find them, and discard them again.
        self._found = ()

    async def drop_those_without_carries(self) -> None:
        """Forget the rollouts whose carries are nowhere, and those that started from them."""
        kept: list[PendingRollout] = []
        for pending in self.found:
            if not await self.lanes.exist(pending.lanes):
                break
            kept.append(pending)
        self._found = tuple(kept)

    @property
    def found(self) -> tuple[PendingRollout, ...]:
        """The results, by round."""
        # Asked each time, so that what the journal has recorded meanwhile drops out by itself.
        first = self._journal.rounds
        later = [pending for pending in self._found if pending.round >= first]
        return tuple(pending for number, pending in enumerate(later) if pending.round == first + number)

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds that are rolled out and not recorded."""
        return frozenset(pending.round for pending in self.found)

    @property
    def env_steps(self) -> int:
        """Env steps sampled in all recorded rounds, and in these."""
        return self._journal.env_steps + sum(pending.env_steps for pending in self.found)

    def of(self, round_: int) -> PendingRollout:
        """The result of a round's rollout."""
        return next(pending for pending in self.found if pending.round == round_)

    def lanes_before(self, round_: int) -> tuple[LaneRecord, ...]:
        """The lanes as the round before this one has left them, if episodes are carried."""
        for pending in self.found:
            if pending.round == round_ - 1:
                return pending.lanes
        return self._journal.last.lanes if self._journal.last else ()


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
