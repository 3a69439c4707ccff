"""Means over seeds and what they may be trusted to.

Student's t intervals of values, differences and ratios: a seed gives one value for each way that a job is run, so ways
are compared seed by seed (paired), and what a seed does to all of them drops out. And the interquartile mean with its
stratified bootstrap interval, which one seed that failed or shone does not move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marless.errors import UnavailableError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 10_000
"""Of a bootstrap."""
_BOOTSTRAP_SEED = 0
"""Equal values have equal intervals."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds and its 95 % interval."""

    mean: float
    low: float | None
    """None where one value says nothing of the spread."""
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """How far the interval reaches to the wider side of the mean."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.mean, self.mean - self.low)

    def holds(self, value: float) -> bool | None:
        """True if `value` lies in the interval; None without one."""
        return None if self.low is None or self.high is None else self.low <= value <= self.high


def interval(values: Sequence[float]) -> Estimate:
    """Mean and Student's t interval of independent values, mean ± t₀.₉₇₅,ₙ₋₁ · s/√n; raises ValueError for none."""
    n = len(values)
    if not n:
        raise ValueError("no value, no mean")
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean=mean, low=None, high=None, n=1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    reach = _student(n - 1) * spread / math.sqrt(n)
    return Estimate(mean=mean, low=mean - reach, high=mean + reach, n=n)


def difference(values: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Of paired values: mean and interval of value − reference; raises ValueError unless both have the same seeds."""
    return interval([value - other for value, other in zip(values, reference, strict=True)])


def ratio(values: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Of paired positive values: geometric mean and interval of value / reference, computed on logarithms.

    So that a against b is exactly the inverse of b against a. Raises ValueError unless all are positive and paired.
    """
    logs = interval(
        [math.log(value) - math.log(other) for value, other in zip(values, reference, strict=True)]  # 0 is refused
    )
    return Estimate(
        mean=math.exp(logs.mean),
        low=None if logs.low is None else math.exp(logs.low),
        high=None if logs.high is None else math.exp(logs.high),
        n=logs.n,
    )


def interquartile_mean(tasks: Sequence[Sequence[float]]) -> Estimate:
    """Mean of the middle half of all values, and its percentile interval (Agarwal et al. 2021, §4.2-4.3).

    `tasks` holds the values of each task's seeds; values of several tasks must be normalised to one scale. A quarter
    of the values, rounded down, is left out at either end: with fewer than four, this is the mean. The interval comes
    from `RESAMPLES` stratified bootstrap samples, seeds drawn with replacement within each task; without one where
    every task has a single seed. Raises ValueError for a task without values, and for none at all.

    Written out, because rliable, the authors' library, needs arch, pandas, seaborn and statsmodels for these lines.
    """
    import numpy as np

    if not tasks or not all(tasks):
        raise ValueError("no value, no mean")
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    drawn = [np.array(task)[rng.integers(len(task), size=(RESAMPLES, len(task)))] for task in tasks]
    mean = float(_middle(np.concatenate(tasks)))
    count = sum(map(len, tasks))
    if all(len(task) == 1 for task in tasks):
        return Estimate(mean=mean, low=None, high=None, n=count)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(_middle(np.concatenate(drawn, axis=1)), (tail, 1 - tail))
    return Estimate(mean=mean, low=float(low), high=float(high), n=count)


def _middle(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interquartile means over the last axis."""
    import numpy as np

    count = values.shape[-1]
    cut = count // 4
    middle: NDArray[np.float64] = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return middle


def _student(freedom: int) -> float:
    """The t beyond which a twentieth lies, on both sides together."""
    try:
        from scipy.special import stdtrit
    except ImportError:
        raise UnavailableError("intervals need SciPy; install it with: pip install 'marless[sharing]'") from None
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
