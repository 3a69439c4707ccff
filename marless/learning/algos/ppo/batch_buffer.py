"""The batches of the newest rounds of one agent class, each of which is used several times (Luo et al. 2020, §3.2).

A batch is what a round has sampled. It is kept for N rounds and used K times: K uses are spread evenly over its N
rounds, the first of them in its own round. So each round uses K batches once the buffer is full, and fewer before.
With N = 1 each round's batch is used K times, at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.core.state import Arrays
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import EnvSpaces

_SHARED = ("cut", "boot_index")
_ROUNDS = "rounds"
# What would have been legal at a cut matters to Q values; the value of a critic there does not depend on it.
_UNUSED = "boot_mask/"
Batch = tuple[Trajectory, ...]
"""A round's trajectories, in the order of actors, with the arrays of one agent class only."""


class BatchBuffer:
    """The last `batches` rounds, of class `agent_class`; each batch has `uses` uses."""

    def __init__(
        self, spaces: EnvSpaces, agent_class: int, *, batches: int, uses: int, memory: tuple[int, ...] = ()
    ) -> None:
        """Make an empty buffer; `memory` as in `TrajectorySchema`."""
        self._spaces, self._class, self._memory = spaces, agent_class, memory
        self._kept, self._ages = batches, [use * batches // uses for use in range(uses)]
        self._batches: dict[int, Batch] = {}

    def emptied(self) -> BatchBuffer:
        """A buffer like this one without batches."""
        made = copy(self)
        made._batches = {}
        return made

    def add(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        """Add the batch of a round, as copies; batches that are too old for round `number` are dropped."""
        self._batches[number] = tuple(self._copied(each) for each in trajectories)
        kept = sorted(n for n in self._batches if 0 <= number - n < self._kept)
        self._batches = {n: self._batches[n] for n in kept}

    def due(self, number: int) -> list[Batch]:
        """The batches that round `number` uses, oldest first; one that is used several times comes again after that.

        The last one is that of the round itself.
        """
        # With fewer rounds than uses some ages are equal: such a batch is due several times in one round.
        left = {n: self._ages.count(number - n) for n in self._batches}
        found: list[Batch] = []
        while any(left.values()):
            found += [self._batches[n] for n in left if left[n]]
            left = {n: max(count - 1, 0) for n, count in left.items()}
        return found

    def used(self, number: int) -> None:
        """Drop the batches that no round after `number` uses, so that they are not published."""
        self._batches = {n: each for n, each in self._batches.items() if number - n < self._ages[-1]}

    def __len__(self) -> int:
        return len(self._batches)

    def arrays(self) -> Arrays:
        """The content as named arrays: `rounds`, int64 [n], and `<round>/<actor>/<array of a trajectory>`."""
        found: dict[str, NDArray[np.generic]] = {_ROUNDS: np.array(list(self._batches), np.int64)}
        for number, batch in self._batches.items():
            for actor, trajectory in enumerate(batch):
                found |= {f"{number}/{actor}/{name}": array for name, array in trajectory.arrays.items()}
        return found

    def restore(self, arrays: Arrays) -> None:
        """Replace the content by that of `arrays`; raises CorruptError for arrays of another job."""
        parts: dict[int, dict[int, dict[str, NDArray[np.generic]]]] = {}
        for name, array in arrays.items():
            number, _, rest = name.partition("/")
            actor, _, what = rest.partition("/")
            if name != _ROUNDS and not (number.isdecimal() and actor.isdecimal()):
                raise CorruptError(f"the kept batches have an array {name!r}, which is of no round")
            if name != _ROUNDS:
                parts.setdefault(int(number), {}).setdefault(int(actor), {})[what] = array
        rounds = arrays.get(_ROUNDS, np.zeros(0, np.int64)).tolist()
        if sorted(parts) != sorted(rounds) or len(rounds) > self._kept:
            raise CorruptError(f"the kept batches are of rounds {sorted(parts)}, and should be of {rounds}")
        self._batches = {number: tuple(self._checked(parts[number])) for number in sorted(parts)}

    def _copied(self, trajectory: Trajectory) -> Trajectory:
        """The arrays that are used, as copies: those of a round may be views of a file that is removed after it."""
        suffix = f"/{self._class}"
        used = {
            name: np.array(array)
            for name, array in trajectory.arrays.items()
            if name in _SHARED or (name.endswith(suffix) and not name.startswith(_UNUSED))
        }
        return Trajectory(used)

    def _checked(self, actors: Mapping[int, Mapping[str, NDArray[np.generic]]]) -> Iterator[Trajectory]:
        for actor in sorted(actors):
            found = actors[actor]
            shape = found["cut"].shape if "cut" in found else ()
            rows = found["boot_index"].size if "boot_index" in found else 0
            if len(shape) != 2 or {name: (a.dtype.name, a.shape) for name, a in found.items()} != self._expected(
                shape[0], shape[1], rows
            ):
                raise CorruptError(f"a kept batch has arrays {sorted(found)}, which do not fit this job")
            yield Trajectory(found)

    def _expected(self, steps: int, batch: int, rows: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        schema = TrajectorySchema(
            self._spaces, steps, batch, with_state=False, carried=bool(self._memory), memory=self._memory
        )
        suffix = f"/{self._class}"
        return {
            name: form
            for name, form in schema.shapes(rows).items()
            if name in _SHARED or (name.endswith(suffix) and not name.startswith(_UNUSED))
        }
