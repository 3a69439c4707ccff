"""A comparison as one table: a column per variant, a row per quantity, with intervals over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from marless.cost.billing.bill import ChargedSide
from marless.cost.comparison import statistics
from marless.cost.comparison.controls import Control, ControlKind
from marless.cost.comparison.runs import Figures, Variant
from marless.cost.comparison.statistics import Equivalence, MeanInterval, Profile, profile
from marless.jobs.prices import ACCOUNTINGS, Accounting
from marless.jobs.sections import EnvSpec

REFERENCES = ("vanilla", "marless-minus")
"""Presets that costs are compared with, if they are in the comparison (Wei et al. 2025, figs. 9 and 12)."""
_COSTS = ("paper cost, $", "billed cost, $, measured", "serverful cost, $, modelled")
MARGIN = 0.05
_IQM = "interquartile mean"
_MEANS = ("greedy", "random", "modelled_s", "measured_s", "learners", "actors", "cold_starts")


@dataclass(frozen=True, kw_only=True)
class VariantColumn:
    """One variant over all seeds."""

    variant: str
    about: str
    counts: Accounting
    """The accounting by which its cost is counted."""
    settings: tuple[str, ...]
    """Settings of its scaling and sharing policies that are not the defaults."""
    figures: tuple[Figures, ...]
    """The results of every seed, in the order of the seeds."""
    env: EnvSpec
    """What it was trained in."""

    @property
    def gains(self) -> dict[str, MeanInterval]:
        """What must be above 0 for it to have learned, by what it is: its greedy return above the random policy's.

        Where sides compete, each side's gain over chance, because the mean over sides says nothing about learning.
        """
        if self.figures[0].sides:
            return {f"{side} against chance, minus chance there": self.side(side) for side in self.figures[0].sides}
        greedy, random = self.values(attrgetter("greedy")), self.values(attrgetter("random"))
        return {"greedy return minus random policy": statistics.difference(greedy, random)}

    def values(self, of: Callable[[Figures], float]) -> list[float]:
        """One quantity for every seed."""
        return [of(each) for each in self.figures]

    def estimate(self, of: Callable[[Figures], float]) -> MeanInterval:
        """Mean of a quantity over seeds."""
        return statistics.interval(self.values(of))

    def costs(self, accounting: Accounting) -> list[float]:
        """Cost of every seed's run, in US dollars."""
        return self.values(lambda each: each.cost_usd[accounting])

    @property
    def middle(self) -> MeanInterval:
        """Interquartile mean of the final greedy return over seeds."""
        return statistics.interquartile_mean([self.values(attrgetter("greedy"))])

    @property
    def won(self) -> MeanInterval | None:
        """Interquartile mean of the fraction of final greedy episodes that were won; None if wins are not reported."""
        return self._share(each.wins for each in self.figures)

    @property
    def random_won(self) -> MeanInterval | None:
        """The same for the random baseline."""
        return self._share(each.random_wins for each in self.figures)

    @property
    def exploring(self) -> list[float] | None:
        """The return of every seed while exploring, at the end; None if some run has none."""
        known = [each.exploring for each in self.figures if each.exploring is not None]
        return known if len(known) == len(self.figures) else None

    def _share(self, values: Iterable[float | None]) -> MeanInterval | None:
        known = [value for value in values if value is not None]
        return statistics.interquartile_mean([known]) if known else None

    def side(self, name: str) -> MeanInterval:
        """An agent class's gain over a random policy, against random opponents, in a competitive environment."""
        return self.estimate(lambda each: each.sides[name])

    @property
    def results(self) -> Mapping[str, list[float]]:
        """What tells how well each seed has learned, by what it is: the greedy return at the end.

        Where sides compete, each side's gain over chance instead: the mean over sides says nothing about learning.
        """
        if not self.figures[0].sides:
            return {"greedy return": self.values(attrgetter("greedy"))}
        return {
            f"{side} against chance": self.values(lambda each, side=side: each.sides[side])  # type: ignore[misc]  # mypy knows no default of a lambda
            for side in self.figures[0].sides
        }

    @property
    def honest(self) -> ChargedSide:
        """What a provider would charge for: the machine, or its functions."""
        return "serverful" if self.counts == "serverful" else "billed"

    @property
    def charges(self) -> list[float]:
        """What a provider would charge for every seed's run, modelled, in US dollars."""
        return self.values(lambda each: each.charged_usd[self.honest])


@dataclass(frozen=True, kw_only=True)
class ControlColumn(VariantColumn):
    """One control of a variant over all seeds; `about` says what it has in place of the variant's decisions."""

    of: str
    """The variant."""
    kind: ControlKind


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Variants of one job over the same seeds, and the controls of those that decide."""

    job: str
    slots: int
    """Number of vCPUs for which wall-clock time is modelled."""
    columns: tuple[VariantColumn, ...]
    controls: tuple[ControlColumn, ...] = ()
    margin: float = MARGIN
    """Up to which fraction of what the reference has learned over random policies returns count as equal."""

    @property
    def reference(self) -> VariantColumn:
        """The column that returns are compared with: vanilla, else the first."""
        return next((column for column in self.columns if column.variant == REFERENCES[0]), self.columns[0])

    @property
    def one_env(self) -> bool:
        """False if variants have environments with different options, so that returns may measure different things."""
        return all(column.env == self.columns[0].env for column in self.columns)

    @property
    def cost_references(self) -> tuple[VariantColumn, ...]:
        """The columns that costs are compared with: of other variants than presets, the first."""
        presets = tuple(column for name in REFERENCES for column in self.columns if column.variant == name)
        return presets or self.columns[:1]


def compared(
    job: str,
    slots: int,
    variants: Sequence[Variant],
    runs: Sequence[Figures],
    controls: Sequence[Control] = (),
    margin: float = MARGIN,
) -> Comparison:
    """Build the comparison from the results of all runs; raises ValueError unless every variant has the same seeds."""
    columns: list[VariantColumn] = []
    for variant in variants:
        columns.append(
            VariantColumn(
                variant=variant.name,
                about=variant.about,
                counts=variant.counts,
                settings=variant.settings,
                figures=_own(variant.name, runs, columns),
                env=variant.spec.env,
            )
        )
    return Comparison(
        job=job,
        slots=slots,
        columns=tuple(columns),
        margin=margin,
        controls=tuple(
            ControlColumn(
                variant=control.name,
                about=control.about,
                counts=control.counts,
                settings=(),
                figures=_own(control.name, runs, columns),
                env=control.spec.env,
                of=control.of,
                kind=control.kind,
            )
            for control in controls
        ),
    )


def _own(name: str, runs: Sequence[Figures], columns: Sequence[VariantColumn]) -> tuple[Figures, ...]:
    """The results of a variant or control by seed; raises ValueError unless its seeds are those of the columns."""
    own = sorted((each for each in runs if each.variant == name), key=lambda each: each.seed)
    if columns and [each.seed for each in own] != [each.seed for each in columns[0].figures]:
        raise ValueError(f"{name} was not run with the seeds of {columns[0].variant}")
    return tuple(own)


def equivalences(comparison: Comparison, column: VariantColumn) -> dict[str, Equivalence]:
    """Tests of a variant's results for equality with the reference's, by what is compared."""
    reference = comparison.reference
    learned = (max(gain.mean, 0.0) for gain in reference.gains.values())
    return {
        what: statistics.equivalence(column.results[what], values, comparison.margin * gain)
        for (what, values), gain in zip(reference.results.items(), learned, strict=True)
    }


def cost_ratio(column: VariantColumn, reference: VariantColumn) -> MeanInterval:
    """Ratio of the costs by each variant's own accounting, paired over seeds.

    *paper* and *serverful* follow from the seconds of functions alone. *billed* holds times that were measured, so that
    it is never divided by *serverful*, nor the other way round: what a provider would charge stands for both then.
    """
    if {column.counts, reference.counts} == {"billed", "serverful"}:
        return honest_ratio(column, reference)
    return statistics.ratio(column.costs(column.counts), reference.costs(reference.counts))


def honest_ratio(column: VariantColumn, reference: VariantColumn) -> MeanInterval:
    """Ratio of what a provider would charge for each, modelled alike, paired over seeds."""
    return statistics.ratio(column.charges, reference.charges)


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The table's cells: a header row, then a row per quantity, beginning with its name and unit."""
    columns, references = comparison.columns, comparison.cost_references
    table: list[tuple[str, ...]] = [("", *(column.variant for column in columns))]

    def mean(name: str, figure: str, digits: int) -> None:
        table.append((name, *(plus_minus(column.estimate(attrgetter(figure)), digits) for column in columns)))

    mean("greedy return per agent, at the end", "greedy", 4)
    table.append((f"the same, {_IQM}", *(spanned(column.middle) for column in columns)))
    table += _exploring(comparison)
    mean("random policy", "random", 4)
    if any(won := [column.won for column in columns]):
        table.append((f"greedy episodes won, {_IQM}", *(each.text(".0%") if each else "" for each in won)))
        random_won = (column.random_won for column in columns)
        table.append(("random policy won", *(each.text(".0%") if each else "" for each in random_won)))
    for side in columns[0].figures[0].sides:
        table.append(
            (f"{side} against chance, above chance", *(plus_minus(column.side(side), 4) for column in columns))
        )
    table += _improvement(comparison)
    for name, accounting in zip(_COSTS, ACCOUNTINGS, strict=True):
        table.append((name, *(plus_minus(statistics.interval(column.costs(accounting)), 4) for column in columns)))
    table.append(("cost that counts", *(column.counts for column in columns)))
    for other in references:
        table.append((f"that / {other.variant}'s", *(cost_ratio(column, other).text(".2f") for column in columns)))
    if {column.counts for column in columns} != {"billed"}:  # else what is charged is what counts, and was measured
        charges = (plus_minus(statistics.interval(each.charges), 4) for each in columns)
        table.append(("as charged, $, modelled", *charges))
    for other in references if any(column.counts != column.honest for column in columns) else ():
        name = f"as charged / {other.variant}'s ({other.honest})"
        table.append((name, *(honest_ratio(column, other).text(".2f") for column in columns)))
    mean(f"wall-clock modelled on {comparison.slots} slots, s", "modelled_s", 4)
    mean("wall-clock measured, s", "measured_s", 4)
    mean("learners invoked per round (logical functions of stacked passes)", "learners", 3)
    mean("actors per round", "actors", 3)
    mean("cold starts per run", "cold_starts", 3)
    return table


def _exploring(comparison: Comparison) -> list[tuple[str, ...]]:
    """The rows on returns while exploring; none if a run has none at the end."""
    reference = comparison.reference
    found = [column.exploring for column in comparison.columns if column.exploring]
    if len(found) < len(comparison.columns) or not reference.exploring:
        return []
    above = [statistics.difference(each, reference.exploring) for each in found]
    return [
        ("return while exploring, last tenth", *(plus_minus(statistics.interval(each), 4) for each in found)),
        (f"that − {reference.variant}'s", *(spanned(each, 3) for each in above)),
    ]


def _improvement(comparison: Comparison) -> list[tuple[str, ...]]:
    """The rows with the probability that a run of a variant is better than one of the reference; none for it alone."""
    if len(comparison.columns) == 1:
        return []
    reference = comparison.reference
    found = []
    for what, values in reference.results.items():
        cells = (
            "" if each is reference else statistics.improvement(each.results[what], values).text(".2f")
            for each in comparison.columns
        )
        of = f", {what}" if len(reference.results) > 1 else ""
        found.append((f"probability of improvement over {reference.variant}{of}", *cells))
    return found


def profiles(comparison: Comparison) -> dict[str, dict[str, Profile]]:
    """Variant → what tells how well it has learned → its performance profile, at the values that any run has."""
    found: dict[str, dict[str, Profile]] = {column.variant: {} for column in comparison.columns}
    for what in comparison.reference.results:
        thresholds = sorted({value for column in comparison.columns for value in column.results[what]})
        for column in comparison.columns:
            found[column.variant][what] = profile(column.results[what], thresholds)
    return found


def less(ratio: MeanInterval) -> str:
    """A cost ratio as text: "57 % less [54 to 60 %]"."""
    less = ratio.mean <= 1
    said = f"{abs(1 - ratio.mean) * 100:.0f} % {'less' if less else 'more'}"
    if ratio.low is None or ratio.high is None:
        return said
    low, high = sorted(round((1 - end) * 100 if less else (end - 1) * 100) for end in (ratio.low, ratio.high))
    return f"{said} [{low} to {high} %]"


def plus_minus(estimate: MeanInterval, digits: int = 3) -> str:
    """Mean ± half-width of the 95 % interval, to `digits` significant digits of the mean."""
    places = _places(estimate.mean, digits)
    reach = estimate.half_width
    return f"{estimate.mean:,.{places}f}" + ("" if reach is None else f" ± {reach:,.{places}f}")


def spanned(estimate: MeanInterval, digits: int = 4) -> str:
    """Mean and 95 % interval, to `digits` significant digits of the mean."""
    return estimate.text(f",.{_places(estimate.mean, digits)}f")


def markdown(table: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown; the first row is its header."""
    header, *body = table
    lines = [header, ("---", *("---:" for _ in header[1:])), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def to_json(comparison: Comparison, statements: Sequence[str]) -> dict[str, Any]:  # Any: JSON
    """The comparison as JSON: estimates, ratios, and every run's figures and curves."""
    return {
        "job": comparison.job,
        "slots": comparison.slots,
        "margin": comparison.margin,
        "seeds": [each.seed for each in comparison.columns[0].figures],
        "variants": {column.variant: _column(comparison, column) for column in comparison.columns},
        "statements": list(statements),
    }


def _column(comparison: Comparison, column: VariantColumn) -> dict[str, Any]:  # Any: JSON
    greedy, random = column.values(attrgetter("greedy")), column.values(attrgetter("random"))
    reference = comparison.reference.values(attrgetter("greedy"))
    return {
        "about": column.about,
        "counts": column.counts,
        "settings": list(column.settings),
        **{name: _plain(column.estimate(attrgetter(name))) for name in _MEANS},
        "cost_usd": {accounting: _plain(statistics.interval(column.costs(accounting))) for accounting in ACCOUNTINGS},
        "charged_usd": _plain(statistics.interval(column.charges)),
        "cost_ratio": {other.variant: _plain(cost_ratio(column, other)) for other in comparison.cost_references},
        "charged_ratio": {other.variant: _plain(honest_ratio(column, other)) for other in comparison.cost_references},
        "sides_above_chance": {name: _plain(column.side(name)) for name in column.figures[0].sides},
        "exploring": column.exploring and _plain(statistics.interval(column.exploring)),
        "greedy_interquartile_mean": _plain(column.middle),
        "win_rate": column.won and _plain(column.won),
        "random_win_rate": column.random_won and _plain(column.random_won),
        "greedy_above_random": _plain(statistics.difference(greedy, random)),
        f"greedy_above_{comparison.reference.variant}": _plain(statistics.difference(greedy, reference)),
        f"equality_with_{comparison.reference.variant}": {
            what: dataclasses.asdict(found) | {"p": found.p, "verdict": found.verdict}
            for what, found in equivalences(comparison, column).items()
        },
        f"probability_of_improvement_over_{comparison.reference.variant}": {
            what: _plain(statistics.improvement(values, comparison.reference.results[what]))
            for what, values in column.results.items()
        },
        "profile": {what: dataclasses.asdict(found) for what, found in profiles(comparison)[column.variant].items()},
        "runs": [dataclasses.asdict(each) for each in column.figures],
    }


def _plain(estimate: MeanInterval) -> dict[str, Any]:  # Any: JSON
    return dataclasses.asdict(estimate)


def _places(value: float, digits: int) -> int:
    """Number of decimals, at most nine, that show a value to `digits` significant digits."""
    whole = f"{abs(value):e}".partition("e")[2]
    return min(max(digits - 1 - int(whole), 0), 9)
