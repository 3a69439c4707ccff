"""What a comparison says, in sentences with their numbers, and what its words mean."""

from __future__ import annotations

from collections.abc import Iterator

from marless.comparison import statistics
from marless.comparison.statistics import Estimate
from marless.comparison.table import Column, Comparison, cost_ratio, honest_ratio

EQUAL = (
    "Equal returns means: the 95 % Student t interval of the paired differences over seeds holds 0. Few seeds make it "
    "wide, so what it could hide is said beside it."
)


def statements(comparison: Comparison) -> list[str]:
    """Runs made once, returns, chance, costs, settings and labels; one sentence or two each."""
    return [
        *_once(comparison),
        *(_above_random(column) for column in comparison.columns),
        EQUAL,
        *(
            _returns(column, comparison.reference)
            for column in comparison.columns
            if column is not comparison.reference
        ),
        *_costs(comparison),
        *_settings(comparison),
        *_lengths(comparison),
        _labels(comparison),
    ]


def equal(column: Column, reference: Column) -> bool | None:
    """Equal returns as `EQUAL` has it; None with one seed."""
    return _difference(column, reference).holds(0.0)


def above_random(column: Column) -> bool | None:
    """The whole interval of greedy − random lies above 0; None with one seed."""
    low = _gain(column).low
    return None if low is None else low > 0.0


def _once(comparison: Comparison) -> Iterator[str]:
    by_run: dict[str, list[str]] = {}
    for column in comparison.columns:
        by_run.setdefault(column.figures[0].run, []).append(column.preset)
    for names in by_run.values():
        if len(names) > 1:
            yield (
                f"{' and '.join(names)} train identically, they differ in the bill only: their runs were made once and "
                f"billed {_times(len(names))}."
            )


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


def _above_random(column: Column) -> str:
    gain = _gain(column)
    verdict = {
        None: "one seed gives no interval",
        True: "clearly above random",
        False: "NOT clearly above random: its costs compare nothing",
    }[above_random(column)]
    return f"{column.preset}: greedy return minus random policy {_signed(gain)}: {verdict}."


def _returns(column: Column, reference: Column) -> str:
    found = _difference(column, reference)
    begin = f"{column.preset} − {reference.preset}: greedy return {_signed(found)}"
    if found.low is None or found.high is None:
        return f"{begin}: one seed gives no interval."
    if column.figures[0].run == reference.figures[0].run:
        return f"{begin}: the same runs."
    if not found.holds(0.0):
        return f"{begin}: {'better' if found.mean > 0 else 'worse'}, NOT equal within the 95 % interval."
    learned = _gain(reference).mean
    share = f", {max(-found.low, 0.0) / learned * 100:.0f} % of what {reference.preset} learned" if learned > 0 else ""
    return f"{begin}: equal within the 95 % interval; it could hide a loss of {max(-found.low, 0.0):.2f}{share}."


def _costs(comparison: Comparison) -> Iterator[str]:
    for reference in comparison.cost_references:
        for column in comparison.columns:
            if column is not reference and column.preset != comparison.reference.preset:
                counted, charged = cost_ratio(column, reference), honest_ratio(column, reference)
                yield (
                    f"{column.preset} costs {_less(counted)} than {reference.preset} ({column.counts} against "
                    f"{reference.counts}); as charged, {_less(charged)} ({column.honest} against {reference.honest})."
                )


def _less(ratio: Estimate) -> str:
    """ "57 % less [54 % to 60 %]"."""
    word = "less" if ratio.mean <= 1 else "more"
    if ratio.low is None or ratio.high is None:
        return f"{_percent(ratio.mean)} {word}"
    ends = sorted((_signed_percent(ratio.low, word), _signed_percent(ratio.high, word)))
    return f"{_percent(ratio.mean)} {word} [{ends[0]} to {ends[1]} %]"


def _percent(ratio: float) -> str:
    return f"{abs(1 - ratio) * 100:.0f} %"


def _signed_percent(ratio: float, word: str) -> int:
    return round((1 - ratio) * 100 if word == "less" else (ratio - 1) * 100)


def _settings(comparison: Comparison) -> Iterator[str]:
    for column in comparison.columns:
        if column.settings:
            yield f"{column.preset} was run with {', '.join(column.settings)}."


def _lengths(comparison: Comparison) -> Iterator[str]:
    lengths = {column.preset: {each.rounds for each in column.figures} for column in comparison.columns}
    if len(set.union(*lengths.values())) > 1:
        told = (f"{name} {min(found)} to {max(found)}" for name, found in lengths.items())
        yield f"Runs had different numbers of rounds: {', '.join(told)}."


def _labels(comparison: Comparison) -> str:
    seeds = len(comparison.columns[0].figures)
    spread = f"± and [ ]: 95 % Student t intervals over {seeds} seeds" if seeds > 1 else "One seed: no intervals"
    return (
        f"{spread}; ratios are paired by seed (geometric mean). Modelled: the recorded functions' durations scheduled "
        f"on {comparison.slots} vCPUs; the serverful figure is for a modelled run too. Measured: the sum of the "
        "rounds' times on the machine that ran them."
    )


def _gain(column: Column) -> Estimate:
    greedy, random = (column.values(lambda each: each.greedy), column.values(lambda each: each.random))
    return statistics.difference(greedy, random)


def _difference(column: Column, reference: Column) -> Estimate:
    return statistics.difference(column.values(lambda each: each.greedy), reference.values(lambda each: each.greedy))


def _signed(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:+.2f}"
    return f"{estimate.mean:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"
