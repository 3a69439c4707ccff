"""The rollouts of a job whose rounds are not recorded yet, in memory and in pending.json."""

from __future__ import annotations

import asyncio

from marless.core.lanes import LaneRecord
from marless.rpc.concurrency import to_the_end
from services.coordinator.state.base import DurableJob
from services.coordinator.state.journal import Journal
from services.coordinator.state.lanes import LanePublisher
from services.coordinator.state.status import PendingRollout


class PendingRollouts:
    """The results of rollouts, from the round that is trained next on, without a gap."""

    def __init__(self, folder: DurableJob, journal: Journal) -> None:
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
        self._found = ()

    async def keep_those_with(self, lanes: LanePublisher) -> None:
        """Forget the rollouts whose carries are nowhere, and those that started from them."""
        kept: list[PendingRollout] = []
        for pending in self.found:
            if not await lanes.exist(pending.lanes):
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
