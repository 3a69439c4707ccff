"""Means over seeds with confidence intervals.

Student's t intervals for values, differences and ratios. Variants are compared seed by seed (paired), so that effects
of a seed on all variants cancel. Also the interquartile mean with its stratified bootstrap interval, which is robust
against single outlier seeds, the probability that one variant is better than another, and performance profiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal, cast

from marless.core.errors import UnavailableError
from marless.learning.data.returns import return_format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
LEVEL = 0.05
"""Of a one-sided test: the largest probability with which it claims what is not so."""
Verdict = Literal["equal", "better", "worse", "not shown equal"]
RESAMPLES = 10_000
"""Number of bootstrap samples."""
_BOOTSTRAP_SEED = 0
"""Fixed, so that equal values give equal intervals."""


@dataclass(frozen=True, kw_only=True)
class MeanInterval:
    """A mean over seeds and its 95 % interval."""

    mean: float
    low: float | None
    """None with a single value, which tells nothing about the spread."""
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Distance from the mean to the farther end of the interval; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.mean, self.mean - self.low)

    def text(self, form: str) -> str:
        """The mean and, if there is one, the interval, in this format: "0.91 [0.85, 0.97]" for ".2f"."""
        if self.low is None or self.high is None:
            return format(self.mean, form)
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"

    def as_returns(self, *others: float | None) -> str:
        """A mean difference of returns, "+0.91 [+0.85, +0.97]", with the decimals that these `others` need."""
        return self.text(f"+{return_format(self.mean, self.low, self.high, *others)}")

    def holds(self, value: float) -> bool | None:
        """True if `value` lies in the interval; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= value <= self.high


def interval(values: Sequence[float]) -> MeanInterval:
    """Mean and Student's t interval of independent values, mean ± t₀.₉₇₅,ₙ₋₁ · s/√n; raises ValueError for none."""
    n = len(values)
    if not n:
        raise ValueError("no value, no mean")
    mean = math.fsum(values) / n
    if n == 1:
        return MeanInterval(mean=mean, low=None, high=None, n=1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    reach = _student(n - 1) * spread / math.sqrt(n)
    return MeanInterval(mean=mean, low=mean - reach, high=mean + reach, n=n)


def ends(found: Sequence[MeanInterval]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The low and the high ends of intervals, for a band; both empty if there are none."""
    known = [(each.low, each.high) for each in found if each.low is not None and each.high is not None]
    return tuple(low for low, _ in known), tuple(high for _, high in known)


def difference(values: Sequence[float], reference: Sequence[float]) -> MeanInterval:
    """Mean and interval of value − reference for paired values; raises ValueError if the lengths differ."""
    return interval([value - other for value, other in zip(values, reference, strict=True)])


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Whether paired values are equal to a reference up to a margin: two one-sided t tests (Schuirmann 1987)."""

    difference: MeanInterval
    """Mean of value − reference, and its 95 % interval."""
    margin: float
    p_worse: float | None
    """p of the test against "the mean difference is −margin or less"; None with one pair, which tells nothing."""
    p_better: float | None
    """p of the test against "the mean difference is +margin or more"."""

    @property
    def p(self) -> float | None:
        """The larger p of both tests: equality is shown if it is below `LEVEL`."""
        return None if self.p_worse is None or self.p_better is None else max(self.p_worse, self.p_better)

    @property
    def verdict(self) -> Verdict | None:
        """What is shown; None with one pair. A difference within the margin counts as equal, also if it is certain."""
        if self.p is None:
            return None
        if self.p < LEVEL:
            return "equal"
        if self.difference.holds(0.0):
            return "not shown equal"
        return "better" if self.difference.mean > 0 else "worse"


def equivalence(values: Sequence[float], reference: Sequence[float], margin: float) -> Equivalence:
    """Test paired values for equality up to `margin`, in their unit, which must be chosen before they are seen.

    Raises ValueError if the lengths differ or there is none.
    """
    found = difference(values, reference)
    if found.half_width is None:
        return Equivalence(difference=found, margin=margin, p_worse=None, p_better=None)
    error = found.half_width / _student(found.n - 1)
    return Equivalence(
        difference=found,
        margin=margin,
        p_worse=_above(found.mean + margin, error, found.n - 1),
        p_better=_above(margin - found.mean, error, found.n - 1),
    )


def ratio(values: Sequence[float], reference: Sequence[float]) -> MeanInterval:
    """Geometric mean and interval of value / reference for paired positive values, computed on logarithms.

    So the ratio of a to b is exactly the inverse of the ratio of b to a. Raises ValueError unless all are positive and
    the lengths are equal.
    """
    return _exponential(interval(_log_ratios(values, reference)))


def resampled_ratio(values: Sequence[float], reference: Sequence[float]) -> MeanInterval:
    """Geometric mean of value / reference for paired positive values, and its bootstrap percentile interval over pairs.

    Raises ValueError as `ratio` does.
    """
    return _exponential(mean_interval(_log_ratios(values, reference)))


def _log_ratios(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Logarithms of value / reference; 0 is refused."""
    return [math.log(value) - math.log(other) for value, other in zip(values, reference, strict=True)]


def _exponential(logs: MeanInterval) -> MeanInterval:
    """The interval of a geometric mean, from that of the mean of logarithms."""
    return MeanInterval(
        mean=math.exp(logs.mean),
        low=None if logs.low is None else math.exp(logs.low),
        high=None if logs.high is None else math.exp(logs.high),
        n=logs.n,
    )


def interquartile_mean(tasks: Sequence[Sequence[float]]) -> MeanInterval:
    """Interquartile mean of all values, and its bootstrap percentile interval (Agarwal et al. 2021, §4.2-4.3).

    `tasks` holds the values of each task's seeds; values of several tasks must be normalised to one scale. A quarter
    of the values, rounded down, is left out at either end: with fewer than four, this is the mean. The interval comes
    from `RESAMPLES` stratified bootstrap samples: seeds are drawn with replacement within each task. There is none if
    every task has a single seed. Raises ValueError for a task without values, and without tasks.

    Implemented here, because rliable, the authors' library, requires arch, pandas, seaborn and statsmodels.
    """
    return _bootstrapped(tasks, _middle)


def middle(values: Sequence[float]) -> float:
    """Interquartile mean of some values; raises ValueError for none."""
    import numpy as np

    if not values:
        raise ValueError("no value, no mean")
    return float(_middle(np.array(values)))


def median_interval(values: Sequence[float]) -> MeanInterval:
    """Median, as `mean`, and its bootstrap percentile interval over seeds; raises ValueError for no value."""
    import numpy as np

    return _bootstrapped([values], lambda drawn: np.median(drawn, axis=-1))


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Mean and its bootstrap percentile interval, for fractions of runs; raises ValueError for no value."""
    return _bootstrapped([values], lambda drawn: drawn.mean(axis=-1))


def improvement(values: Sequence[float], reference: Sequence[float]) -> MeanInterval:
    """Probability that a run is better than one of the reference, and its interval (Agarwal et al. 2021, §4.3).

    It is the fraction of pairs in which the value is greater; pairs of equal values count half. 0.5 means that neither
    is better. The interval is of a bootstrap in which the seeds of both are drawn with replacement, each on their own;
    there is none if both have one run. Raises ValueError if one has no run.
    """
    import numpy as np

    if not values or not reference:
        raise ValueError("no value, no probability")

    def fraction(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
        # Run by run, because all pairs of many seeds in all samples would take gigabytes.
        signs = [np.sign(ours[..., run, None] - theirs).mean(axis=-1) for run in range(ours.shape[-1])]
        better: NDArray[np.float64] = (1 + np.mean(signs, axis=0)) / 2
        return better

    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    ours, theirs = np.array(values), np.array(reference)
    mean, n = float(fraction(ours, theirs)), len(values)
    if len(values) == len(reference) == 1:
        return MeanInterval(mean=mean, low=None, high=None, n=n)
    low, high = _percentiles(fraction(_resampled(ours, rng), _resampled(theirs, rng)))
    return MeanInterval(mean=mean, low=low, high=high, n=n)


def _bootstrapped(
    tasks: Sequence[Sequence[float]], of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> MeanInterval:
    """A statistic of all values, over the last axis, with its stratified bootstrap interval."""
    import numpy as np

    if not tasks or not all(tasks):
        raise ValueError("no value, no mean")
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    drawn = [_resampled(np.array(task), rng) for task in tasks]
    mean = float(of(np.concatenate(tasks)))
    count = sum(map(len, tasks))
    if all(len(task) == 1 for task in tasks):
        return MeanInterval(mean=mean, low=None, high=None, n=count)
    low, high = _percentiles(of(np.concatenate(drawn, axis=1)))
    return MeanInterval(mean=mean, low=low, high=high, n=count)


def _resampled(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """`RESAMPLES` samples of as many values, drawn with replacement: [sample, value]."""
    return values[rng.integers(len(values), size=(RESAMPLES, len(values)))]


def _percentiles(samples: NDArray[np.float64]) -> tuple[float, float]:
    import numpy as np

    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(samples, (tail, 1 - tail))
    return float(low), float(high)


def _middle(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interquartile means over the last axis."""
    import numpy as np

    count = values.shape[-1]
    cut = count // 4
    means: NDArray[np.float64] = np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
    return means


def _above(distance: float, error: float, freedom: int) -> float:
    """p of a one-sided t test: how probable a mean so far above its limit is if the truth lies on it."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(_scipy().stdtr(freedom, -distance / error))


def _student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t distribution."""
    return float(_scipy().stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _scipy() -> ModuleType:
    """The module of the t distribution; raises UnavailableError without SciPy."""
    try:
        import scipy.special
    except ImportError:
        raise UnavailableError("intervals need SciPy; install it with: pip install 'marless[sharing]'") from None
    return cast(ModuleType, scipy.special)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A variant's profile: the fraction of its runs that reach each threshold (Agarwal et al. 2021, §4.2).

    All tuples have one length.
    """

    thresholds: tuple[float, ...]
    """Increasing."""
    fraction: tuple[float, ...]
    """Of runs whose result is at least the threshold; never increasing."""
    low: tuple[float, ...]
    """Ends of the 95 % bootstrap intervals, point by point; empty for a single run."""
    high: tuple[float, ...]


def profile(values: Sequence[float], thresholds: Sequence[float]) -> Profile:
    """The profile of one variant's results, one per run, in any order; raises ValueError for none."""
    found = [mean_interval([float(value >= threshold) for value in sorted(values)]) for threshold in thresholds]
    low, high = ends(found)
    return Profile(thresholds=tuple(thresholds), fraction=tuple(each.mean for each in found), low=low, high=high)
