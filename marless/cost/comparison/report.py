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
from marless.cost.comparison.statistics import Equivalence
from marless.cost.comparison.table import (
    Comparison,
    VariantColumn,
    cost_ratio,
    equivalences,
    honest_ratio,
    less,
    markdown,
    rows,
)
from marless.cost.comparison.verdicts import RULE, control_rows, verdicts
from marless.learning.data.returns import return_text

EQUAL = (
    "Equal: two one-sided t tests at the 5 % level, paired by seed, show that the difference is within the margin, "
    "which is to be chosen before the runs (--margin). Worse, better: that is not shown, and the 95 % interval "
    "excludes 0. Not shown equal: neither is shown; more seeds may tell."
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
            for sentence in _returns(comparison, column)
        ),
        *_costs(comparison),
        *_verdicts(comparison),
        *(f"{each.variant} was run with {', '.join(each.settings)}." for each in comparison.columns if each.settings),
        *_lengths(comparison),
        *_waiting(comparison),
        _labels(comparison),
    ]


def equal(comparison: Comparison, column: VariantColumn) -> bool | None:
    """True if returns are shown to be equal as defined by `EQUAL`, of each side where sides compete; None with one
    seed.
    """
    found = [each.verdict for each in equivalences(comparison, column).values()]
    return None if None in found else all(verdict == "equal" for verdict in found)


def above_random(column: VariantColumn) -> bool | None:
    """True if the whole interval of greedy − random lies above 0; None with one seed.

    In a competitive environment, this must hold for each side against random opponents, because the mean over sides
    says nothing about learning.
    """
    lows = [gain.low for gain in column.gains.values()]
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
    gains = ", ".join(f"{what} {gain.as_returns()}" for what, gain in column.gains.items())
    return f"{column.variant}: {gains}: {verdict}."


def _returns(comparison: Comparison, column: VariantColumn) -> Iterator[str]:
    reference = comparison.reference
    for result, found in equivalences(comparison, column).items():
        begin = f"{column.variant} − {reference.variant}: {result} {found.difference.as_returns(found.margin)}"
        if found.p is None:
            yield f"{begin}: one seed gives no interval."
        elif column.figures[0].run == reference.figures[0].run:
            yield f"{begin}: the same runs."
        else:
            margin = f"{100 * comparison.margin:.3g} % of what {reference.variant} learned; p = {found.p:.2g}"
            what = (
                found.verdict
                if found.difference.holds(0.0) or found.verdict == "equal"
                else f"{found.verdict}, not equal"
            )
            yield f"{begin}: {what} within ±{return_text(found.margin)} ({margin}){_hidden(found)}."


def _hidden(found: Equivalence) -> str:
    """What a difference that is not shown could hide."""
    if found.verdict != "not shown equal" or found.difference.low is None:
        return ""
    return f"; it could hide a loss of {return_text(max(-found.difference.low, 0.0))}"


def _costs(comparison: Comparison) -> Iterator[str]:
    for reference in comparison.cost_references:
        for column in comparison.columns:
            if column is not reference and column.variant != comparison.reference.variant:
                counted, charged = cost_ratio(column, reference), honest_ratio(column, reference)
                said = (
                    f"{column.variant} costs {less(counted)} than {reference.variant} ({column.counts} against "
                    f"{reference.counts})"
                )
                if (column.counts, reference.counts) != (column.honest, reference.honest):  # else it has been said
                    said += f"; as charged, both modelled, {less(charged)} ({column.honest} against {reference.honest})"
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
    """Which runs are billed by durations in which actors waited, and what to do if other programs made them wait."""
    for column in comparison.columns:
        crowded = [each for each in column.figures if each.waiting > MUCH_WAITING and each.time == "duration"]
        if crowded:
            seeds = ", ".join(f"{each.seed} ({1 + each.waiting:.1f} times)" for each in crowded)
            yield (
                f"{column.variant}: durations contain waiting: actors took longer than their CPU seconds with seed "
                f"{seeds}. If they waited for a core, its cost measures other programs, too: bill by CPU time with "
                "--set bill.time=cpu. If their environments wait, that is part of its cost."
            )


def _labels(comparison: Comparison) -> str:
    seeds = len(comparison.columns[0].figures)
    by_cpu = all(each.time == "cpu" for column in comparison.columns for each in column.figures)
    seconds = "CPU seconds (bill.time: cpu)" if by_cpu else "durations"
    spread = f"± and [ ]: 95 % Student t intervals over {seeds} seeds" if seeds > 1 else "One seed: no intervals"
    return (
        f"{spread}; ratios are paired by seed (geometric mean). Interquartile means (the mean, with fewer than four "
        "seeds) have 95 % percentile intervals of a bootstrap over seeds (Agarwal et al. 2021). Modelled: the recorded "
        f"functions' {seconds} scheduled on {comparison.slots} vCPUs; the serverful figure, and what would be "
        "charged, are for modelled runs too. Measured: times on the machine that ran them, which billed cost holds; a "
        "measured cost is never divided by a modelled one. Learners invoked are logical functions: those of a shape "
        "train in one stacked pass of one process."
    )


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
