"""The conclusions of a comparison as sentences with their numbers, with an explanation of the terms.

A comparison is written into a Markdown document between the marks `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from marless.core.errors import SpecError, UnavailableError
from marless.cost.comparison import statistics
from marless.cost.comparison.statistics import MeanInterval
from marless.cost.comparison.table import Comparison, VariantColumn, cost_ratio, honest_ratio, less, markdown, rows
from marless.cost.comparison.verdicts import RULE, control_rows, verdicts

EQUAL = (
    "Equal returns means: the 95 % Student t interval of the paired differences over seeds holds 0. Few seeds make it "
    "wide, so what it could hide is said beside it."
)

MUCH_WAITING = 0.25
"""Runs whose actors waited for more than this fraction of their CPU seconds are marked.

An actor computes, and waits for nothing but new weights: in 182 invocations of 8 ms on two busy cores, all waiting that
the kernel did not count as waiting for a core was below its resolution. So 0.25 is a bill of actors that is a quarter
too high, as much as presets differ by; less of it is in nearly every run on a machine that does anything else.
"""

OTHER_ENVS = (
    "Variants have different options of the environment: their returns compare nothing if an option changes rewards, "
    "agents or the length of episodes."
)


def statements(comparison: Comparison) -> list[str]:
    """All statements: shared runs, gains over random, returns, costs, verdicts, settings, lengths, and the terms."""
    return [
        *_once(comparison),
        *(_above_random(column) for column in comparison.columns),
        *([] if comparison.one_env else [OTHER_ENVS]),
        EQUAL,
        *(
            sentence
            for column in comparison.columns
            if column is not comparison.reference
            for sentence in _returns(column, comparison.reference)
        ),
        *_costs(comparison),
        *_verdicts(comparison),
        *(f"{each.variant} was run with {', '.join(each.settings)}." for each in comparison.columns if each.settings),
        *_lengths(comparison),
        *_waiting(comparison),
        _labels(comparison),
    ]


def equal(column: VariantColumn, reference: VariantColumn) -> bool | None:
    """True if returns are equal as defined by `EQUAL`, of each side where sides compete; None with one seed."""
    found = [difference.holds(0.0) for _, difference, _ in _differences(column, reference)]
    return None if None in found else all(found)


def above_random(column: VariantColumn) -> bool | None:
    """True if the whole interval of greedy − random lies above 0; None with one seed.

    In a competitive environment, this must hold for each side against random opponents, because the mean over sides
    says nothing about learning.
    """
    lows = [gain.low for gain in _gains(column).values()]
    return None if None in lows else all(low > 0.0 for low in lows if low is not None)


def _once(comparison: Comparison) -> Iterator[str]:
    by_run: dict[str, list[str]] = {}
    for column in comparison.columns:
        by_run.setdefault(column.figures[0].run, []).append(column.variant)
    for names in by_run.values():
        if len(names) > 1:
            times = "twice" if len(names) == 2 else f"{len(names)} times"
            yield (
                f"{' and '.join(names)} train identically, they differ in the bill only: their runs were made once and "
                f"billed {times}."
            )


def _above_random(column: VariantColumn) -> str:
    verdict = {
        None: "one seed gives no interval",
        True: "clearly above random",
        False: "NOT clearly above random: its costs compare nothing",
    }[above_random(column)]
    gains = ", ".join(f"{what} {gain.text('+.2f')}" for what, gain in _gains(column).items())
    return f"{column.variant}: {gains}: {verdict}."


def _returns(column: VariantColumn, reference: VariantColumn) -> Iterator[str]:
    for what, found, learned in _differences(column, reference):
        begin = f"{column.variant} − {reference.variant}: {what} {found.text('+.2f')}"
        if found.low is None or found.high is None:
            yield f"{begin}: one seed gives no interval."
        elif column.figures[0].run == reference.figures[0].run:
            yield f"{begin}: the same runs."
        elif not found.holds(0.0):
            yield f"{begin}: {'better' if found.mean > 0 else 'worse'}, NOT equal within the 95 % interval."
        else:
            loss = max(-found.low, 0.0)
            share = f", {loss / learned * 100:.0f} % of what {reference.variant} learned" if learned > 0 else ""
            yield f"{begin}: equal within the 95 % interval; it could hide a loss of {loss:.2f}{share}."


def _costs(comparison: Comparison) -> Iterator[str]:
    for reference in comparison.cost_references:
        for column in comparison.columns:
            if column is not reference and column.variant != comparison.reference.variant:
                counted, charged = cost_ratio(column, reference), honest_ratio(column, reference)
                said = (
                    f"{column.variant} costs {less(counted)} than {reference.variant} ({column.counts} against "
                    f"{reference.counts})"
                )
                if (column.counts, reference.counts) != (column.honest, reference.honest):
                    said += f"; as charged, {less(charged)} ({column.honest} against {reference.honest})"
                yield f"{said}."


def _verdicts(comparison: Comparison) -> Iterator[str]:
    """What is left of savings beside controls, with the rule; nothing without controls."""
    found = verdicts(comparison)
    if found:
        yield RULE
    for verdict in found:
        yield from verdict.sentences()


def _lengths(comparison: Comparison) -> Iterator[str]:
    lengths = {column.variant: {each.rounds for each in column.figures} for column in comparison.columns}
    if len(set.union(*lengths.values())) > 1:
        told = (f"{name} {min(found)} to {max(found)}" for name, found in lengths.items())
        yield f"Runs had different numbers of rounds: {', '.join(told)}."


def _waiting(comparison: Comparison) -> Iterator[str]:
    """Which runs have durations that other programs have lengthened, and what to do if they are billed by them."""
    for column in comparison.columns:
        crowded = [each for each in column.figures if each.waiting > MUCH_WAITING and each.time == "duration"]
        if crowded:
            seeds = ", ".join(f"{each.seed} ({1 + each.waiting:.1f} times)" for each in crowded)
            yield (
                f"{column.variant}: durations contain waiting for a core: actors took longer than their CPU seconds "
                f"with seed {seeds}, so that its cost measures other programs, too; bill by CPU time with --set "
                "bill.time=cpu."
            )


def _labels(comparison: Comparison) -> str:
    seeds = len(comparison.columns[0].figures)
    by_cpu = all(each.time == "cpu" for column in comparison.columns for each in column.figures)
    seconds = "CPU seconds (bill.time: cpu)" if by_cpu else "durations"
    spread = f"± and [ ]: 95 % Student t intervals over {seeds} seeds" if seeds > 1 else "One seed: no intervals"
    return (
        f"{spread}; ratios are paired by seed (geometric mean). Interquartile means (the mean, with fewer than four "
        "seeds) have 95 % percentile intervals of a bootstrap over seeds (Agarwal et al. 2021). Modelled: the recorded "
        f"functions' {seconds} scheduled on {comparison.slots} vCPUs; the serverful figure is for a modelled run too. "
        "Measured: the sum of the rounds' times on the machine that ran them."
    )


def _gains(column: VariantColumn) -> dict[str, MeanInterval]:
    """The estimates that must be above 0 for a variant to have learned, by description."""
    sides = column.figures[0].sides
    if not sides:
        return {"greedy return minus random policy": _gain(column)}
    return {f"{side} against chance, minus chance there": column.side(side) for side in sides}


def _gain(column: VariantColumn) -> MeanInterval:
    greedy, random = (column.values(lambda each: each.greedy), column.values(lambda each: each.random))
    return statistics.difference(greedy, random)


def _differences(column: VariantColumn, reference: VariantColumn) -> Iterator[tuple[str, MeanInterval, float]]:
    """Yield what is compared, the variant's difference to the reference, and the reference's gain over random."""
    learned = [gain.mean for gain in _gains(reference).values()]
    theirs = reference.results
    for (what, values), gain in zip(column.results.items(), learned, strict=True):
        yield what, statistics.difference(values, theirs[what]), gain


def marks(name: str) -> tuple[str, str]:
    """The marks before and after the block `name`."""
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def check_document(document: Path, name: str) -> None:
    """Raise SpecError if the document cannot be read or has no block `name`."""
    _section(_text(document), document, name)


def write_block(document: Path, name: str, block: str) -> None:
    """Replace the block `name`; raises SpecError if there is none, UnavailableError if it cannot be written."""
    text, (begin, end) = _text(document), marks(name)
    section = _section(text, document, name)
    try:
        document.write_text(section.sub(lambda _: f"{begin}\n{block}\n{end}", text, count=1), encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{document}: cannot be written ({error.strerror})") from None


def block(comparison: Comparison, statements: Sequence[str], *, command: str, picture: str) -> str:
    """The contents of a block: the command, the table, the picture, the statements, and where and how long it ran."""
    said = "\n".join(f"- {statement}" for statement in statements)
    shown = f"![Learners, actors, return and cost over rounds]({picture})"
    tables = [markdown(rows(comparison)), *(markdown(control_rows(each)) for each in verdicts(comparison))]
    return "\n\n".join([f"```sh\n{command}\n```", *tables, shown, said, _where(comparison)])


def _where(comparison: Comparison) -> str:
    columns = (*comparison.columns, *comparison.controls)
    by_run = {each.run: each.measured_s for column in columns for each in column.figures}
    lengths = [each.rounds for column in columns for each in column.figures]
    rounds = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{platform.python_version()}: {len(by_run)} runs of {rounds} rounds, {sum(by_run.values()) / 60:.1f} minutes "
        "of rounds."
    )


def _text(document: Path) -> str:
    try:
        return document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(f"{document}: cannot be read ({why}); give a document that has a block") from None


def _section(text: str, document: Path, name: str) -> re.Pattern[str]:
    begin, end = marks(name)
    section = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not section.search(text):
        raise SpecError(
            f"{document} has no block for the job {name}; put the lines {begin} and {end} where it is to be"
        )
    return section
