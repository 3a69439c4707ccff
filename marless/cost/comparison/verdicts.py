"""What of a variant's saving is left beside its controls (`marless.cost.comparison.controls`): in words, and as tables.

The rule, for a variant v and a control c, each pair with the same seed:

- c costs no more than v if the 95 % interval of cost(v) / cost(c) holds 1 or lies above it; else v costs less;
- c's returns are not worse than v's if the interval of the difference, c − v, holds 0 or lies above it; where sides
  compete, this must hold for each side.

A control that costs no more and whose returns are not worse explains the saving away: what the variant decides is not
shown to pay. If the variant costs less, and its returns are not worse than the control's, its saving is left. Otherwise
one is cheaper and the other learns more: the control is dearer in one and cheaper in the other. The cost is that which
counts for the variant. A single run has no interval, and decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

from marless.cost.comparison import statistics
from marless.cost.comparison.controls import ControlKind
from marless.cost.comparison.statistics import MeanInterval
from marless.cost.comparison.table import (
    Comparison,
    ControlColumn,
    VariantColumn,
    cost_ratio,
    less,
    plus_minus,
    spanned,
)

RULE = (
    "A control explains a saving away if it costs no more than the variant (the 95 % interval of the ratio of their "
    "costs, variant / control, holds 1 or lies above it), and its returns are not worse (the interval of the "
    "difference, control − variant, holds 0 or lies above it)."
)
_DECIDED: Mapping[ControlKind, str] = {
    "mean": "deciding the number of actors",
    "shuffled": "choosing which round gets how many actors",
    "final": "changing groups on the way",
    "placebo": "what it measures",
}
"""What a variant does that its control does not."""


class Outcome(StrEnum):
    """What a control says about a variant's saving."""

    explained = "explained away"
    """The control costs no more, and its returns are not worse."""
    left = "left"
    """The variant costs less, and its returns are not worse than the control's."""
    learns_more = "learns more"
    """The control costs no more, and its returns are worse."""
    learns_less = "learns less"
    """The variant costs less, and its returns are worse than the control's."""
    unknown = "unknown"
    """There is one seed."""


@dataclass(frozen=True, kw_only=True)
class ControlVerdict:
    """A variant beside one of its controls."""

    control: ControlColumn
    cost: MeanInterval
    """Ratio of costs, variant / control."""
    returns: Mapping[str, MeanInterval]
    """What tells how well they learned → variant − control."""

    @property
    def outcome(self) -> Outcome:
        """What follows by the rule of the module's docstring."""
        ends = [(each.low, each.high) for each in (self.cost, *self.returns.values())]
        known = [(low, high) for low, high in ends if low is not None and high is not None]
        if len(known) < len(ends):
            return Outcome.unknown
        (_, highest), *differences = known
        if highest < 1:
            worse = any(high < 0 for _, high in differences)
            return Outcome.learns_less if worse else Outcome.left
        control_worse = any(low > 0 for low, _ in differences)
        return Outcome.learns_more if control_worse else Outcome.explained


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A variant beside all of its controls."""

    column: VariantColumn
    reference: VariantColumn | None
    """What its saving is measured against; None if it is what costs are compared with itself."""
    controls: tuple[ControlVerdict, ...]

    @property
    def saved(self) -> MeanInterval | None:
        """Ratio of costs, variant / reference."""
        return cost_ratio(self.column, self.reference) if self.reference else None

    def sentences(self) -> Iterator[str]:
        """The saving and which controls explain it away; then each control with its numbers."""
        name, names = self.column.variant, [each.control.variant for each in self.controls]
        begin = (
            f"{name} costs {less(self.saved)} than {self.reference.variant}. " if self.saved and self.reference else ""
        )
        explaining = [each.control.variant for each in self.controls if each.outcome is Outcome.explained]
        if all(each.outcome is Outcome.unknown for each in self.controls):
            yield f"{begin}Whether a control of {name} explains that away, one seed does not tell."
        elif explaining:
            yield f"{begin}Explained away by {len(explaining)} of {len(names)} controls: {', '.join(explaining)}."
        else:
            yield f"{begin}None of its {len(names)} controls explains that away."
        yield from (_control_sentence(name, each) for each in self.controls)


def verdicts(comparison: Comparison) -> tuple[Verdict, ...]:
    """The verdict on each variant that has controls."""
    found = []
    for column in comparison.columns:
        own = tuple(_verdict(column, each) for each in comparison.controls if each.of == column.variant)
        if own:
            # The cost reference whose cost counts by the same accounting, else the first; not the column itself.
            others = [each for each in comparison.cost_references if each is not column]
            reference = next((each for each in others if each.counts == column.counts), next(iter(others), None))
            found.append(Verdict(column=column, reference=reference, controls=own))
    return tuple(found)


def _verdict(column: VariantColumn, control: ControlColumn) -> ControlVerdict:
    theirs = control.results
    returns = {what: statistics.difference(values, theirs[what]) for what, values in column.results.items()}
    return ControlVerdict(control=control, cost=cost_ratio(column, control), returns=returns)


def _control_sentence(name: str, found: ControlVerdict) -> str:
    decided = _DECIDED[found.control.kind]
    concluded = {
        Outcome.explained: f"{decided} is not shown to pay",
        Outcome.left: f"that is left of its saving, by {decided}",
        Outcome.learns_more: f"the control learned less, so {decided} pays in returns",
        Outcome.learns_less: f"{name} learned less, too, so neither is better",
        Outcome.unknown: "one seed decides nothing",
    }[found.outcome]
    theirs = found.control.results
    returns = ", ".join(f"{what} {each.as_returns(*theirs[what])}" for what, each in found.returns.items())
    said = f"{name} beside {found.control.variant} ({found.control.about}): costs {less(found.cost)}"
    return f"{said}, {returns}: {concluded}."


def control_rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """A table of a variant beside its controls: a header row, then a row per quantity."""
    column = verdict.column
    columns = (column, *(each.control for each in verdict.controls))
    table: list[tuple[str, ...]] = [("", *(each.variant for each in columns))]

    def mean(name: str, figure: str, digits: int) -> None:
        table.append((name, *(plus_minus(each.estimate(attrgetter(figure)), digits) for each in columns)))

    mean("greedy return per agent, at the end", "greedy", 4)
    if all(each.exploring for each in columns):
        exploring = [statistics.interval(each.exploring or ()) for each in columns]
        table.append(("return while exploring, last tenth", *(plus_minus(each, 4) for each in exploring)))
    cells = (plus_minus(statistics.interval(each.costs(column.counts)), 4) for each in columns)
    table.append((f"{column.counts} cost, $", *cells))
    table.append(("as charged, $, modelled", *(plus_minus(statistics.interval(each.charges), 4) for each in columns)))
    mean("actors per round", "actors", 3)
    mean("learners invoked per round (logical functions of stacked passes)", "learners", 3)
    table.append((f"cost, {column.variant} / control", "", *(each.cost.text(".2f") for each in verdict.controls)))
    for what in column.results:
        cells = (spanned(each.returns[what], 3) for each in verdict.controls)
        table.append((f"{what}, {column.variant} − control", "", *cells))
    table.append((f"saving of {column.variant}", "", *(each.outcome.value for each in verdict.controls)))
    return table


def verdicts_to_json(comparison: Comparison) -> dict[str, Any]:  # Any: JSON
    """Variant → its saving, and each of its controls with figures, ratio, differences and outcome."""
    return {each.column.variant: _to_json(each) for each in verdicts(comparison)}


def _to_json(verdict: Verdict) -> dict[str, Any]:  # Any: JSON
    return {
        "reference": verdict.reference.variant if verdict.reference else None,
        "cost_ratio": dataclasses.asdict(verdict.saved) if verdict.saved else None,
        "sentences": list(verdict.sentences()),
        "controls": {
            each.control.kind: {
                "variant": each.control.variant,
                "about": each.control.about,
                "outcome": each.outcome.value,
                "cost_ratio": dataclasses.asdict(each.cost),
                "returns": {what: dataclasses.asdict(found) for what, found in each.returns.items()},
                "runs": [dataclasses.asdict(run) for run in each.control.figures],
            }
            for each in verdict.controls
        },
    }
