"""Models the durations of functions that were not recorded: other numbers of actors, or learners with other samples.

Actors are drawn from the recorded ones of this round or the nearest rounds. The duration of a learner's function is the
recorded one, scaled by the ratio of a fitted line at the new and the old number of samples. The line is fitted by least
squares to all recorded executions of its kind, with non-negative coefficients; if all had the same number of samples,
time is assumed to be proportional to samples. Algorithms that draw batches from a replay buffer process the same number
of samples in each round; only their post-processing depends on the round's samples, and is assumed to be constant if
all rounds had the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from marless.jobs.record import InvocationRecord, RoundRecord

if TYPE_CHECKING:
    import numpy as np

Pooling = Literal["pooled", "drawn"]
ENOUGH = 16
"""Minimum number of recorded actors to draw from; a round with fewer also uses those of the nearest rounds."""
PER_SAMPLE = ("post_process", "critic", "mixer", "policy")
"""Functions whose time grows with their samples; measurements use a subset of fixed size."""
OF_SCOPE = ("post_process", "mixer")
"""Functions that serve all policies of a scope. (A joint critic does, too, but no policy has its name.)"""


@dataclass(frozen=True)
class LinearSeconds:
    """Seconds as a function of samples: `base_s + per_sample_s · samples`, neither negative."""

    base_s: float
    per_sample_s: float
    sizes: int
    """Number of distinct sample counts that it was fitted to; with one, its slope is an assumption."""

    def at(self, samples: float) -> float:
        """Seconds for `samples` samples."""
        return self.base_s + self.per_sample_s * samples


def fit(points: Sequence[tuple[float, float]], *, one_size: Literal["proportional", "constant"]) -> LinearSeconds:
    """The least-squares line with non-negative coefficients through points (samples, seconds).

    `one_size` is the assumption to use if all points have the same number of samples.
    """
    sizes = len({samples for samples, _ in points})
    squares = sum(samples * samples for samples, _ in points)
    proportional = LinearSeconds(0.0, sum(x * y for x, y in points) / squares if squares else 0.0, sizes)
    if sizes < 2 and one_size == "proportional":
        return proportional
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    if sizes < 2:
        return LinearSeconds(mean_y, 0.0, sizes)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    if slope < 0:
        return LinearSeconds(mean_y, 0.0, sizes)
    base_s = mean_y - slope * mean_x
    # The best line with a base of at least 0 goes through the origin then.
    return LinearSeconds(base_s, slope, sizes) if base_s >= 0 else proportional


class DurationModel:
    """A model of the durations of functions, fitted to a recorded run."""

    def __init__(self, records: Sequence[RoundRecord], pooling: Pooling, drawn: int | None = None) -> None:
        """Fit the lines; for `drawn`, see `AlgorithmConfig.drawn`."""
        self._records = records
        self._drawn = drawn
        points: dict[str, list[tuple[float, float]]] = {function: [] for function in PER_SAMPLE}
        for record, env_steps in zip(records, sampled(records), strict=True):
            for each in record.invocations:
                if each.function in points:
                    members = 1
                    if each.function not in OF_SCOPE:
                        members = next((len(group.agents) for group in record.groups if group.policy == each.name), 1)
                    samples = self.samples(each.function, members, env_steps, pooling)
                    points[each.function].append((samples, each.vcpu_s))
        one_size: Literal["proportional", "constant"] = "proportional" if drawn is None else "constant"
        self.lines: Mapping[str, LinearSeconds] = {
            function: fit(found, one_size=one_size if function == "post_process" else "proportional")
            for function, found in points.items()
            if found
        }

    def samples(self, function: str, members: int, env_steps: int, pooling: Pooling) -> float:
        """Number of samples that a function processes for a group of `members` agents in a round of `env_steps`.

        For functions that serve the whole scope (post-processing, joint critics, mixers), pass one member.
        """
        if self._drawn is not None and function != "post_process":
            env_steps = self._drawn
        return float(env_steps * (members if pooling == "pooled" else 1))

    def ratio(self, function: str, before: float, after: float) -> float:
        """The factor by which a function's time changes from `before` to `after` samples."""
        line = self.lines.get(function)
        if line is None or before == after or line.at(before) <= 0:
            return 1.0
        return line.at(after) / line.at(before)

    def actors(self, number: int, count: int, rng: np.random.Generator) -> list[InvocationRecord]:
        """Draw `count` actors with replacement from the recorded round `number` and, if it has few, its neighbours."""
        found: list[InvocationRecord] = []
        for near in self._nearest(number):
            found += [each for each in self._records[near].invocations if each.function == "actor"]
            if len(found) >= ENOUGH:
                break
        return [found[int(drawn)] for drawn in rng.integers(len(found), size=count)] if found else []

    def similarity(self, number: int) -> list[InvocationRecord]:
        """The similarity measurements of the nearest round that has some."""
        for near in self._nearest(number):
            if found := [each for each in self._records[near].invocations if each.function == "similarity"]:
                return found
        return []

    def _nearest(self, number: int) -> list[int]:
        """All rounds by distance from `number`, the earlier of two first."""
        return sorted(range(len(self._records)), key=lambda other: (abs(other - number), other))


def sampled(records: Sequence[RoundRecord]) -> list[int]:
    """Env steps of each round, not accumulated."""
    totals = [record.env_steps for record in records]
    return [after - before for before, after in zip([0, *totals], totals, strict=False)]
