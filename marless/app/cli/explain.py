"""The command `explain`: why a job had its actors and groups."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from marless.app.cli.options import CoordinatorOptions, Output, OutputOption, positive
from marless.app.cli.output import console, data, say, show_object
from marless.app.cli.recorded import Recorded, RecordedArgument, find
from marless.app.cli.working import Working
from marless.core.errors import NotFoundError, SpecError

if TYPE_CHECKING:
    from marless.jobs.explanation import Stretch
    from marless.jobs.record import AggregationRecord, Decision, RoundRecord

_WIDTH = 110
"""Least terminal width in columns for the table layout."""
_INDENT, _DEEPER = 2 * " ", 6 * " "
_DIGITS = 5
_LONGEST_PATH = 6


def explain(
    at: CoordinatorOptions,
    job: RecordedArgument,
    round_: Annotated[
        int | None,
        typer.Option(
            "--round",
            parser=positive,
            metavar="N",
            help="Show the decisions of this round with all inputs; the first is 1.",
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw learners, actors, return and cost over rounds.")
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Explain why the number of actors, and the groups of agents that share a learner, changed.

    The table counts rounds from 1, as `watch` does; JSON and YAML count from 0, as the records do.
    """
    if round_ is not None and output is Output.jsonl:
        raise SpecError("--round shows a single round: give -o table, json or yaml")
    if picture:
        from marless.app.cli.picture import check, draw_run

        check(picture)
    with Working(f"reading {job}"):
        found = find(job, at)
    if picture:
        draw_run(found, picture)
        say(f"drawn: {picture}")
    if not found.records:
        say(f"job {found.job} has no round yet: nothing has been decided")
    if round_ is not None:
        _show_round(found, round_, output)
    elif output is Output.table:
        _show_chapters(found)
    else:
        _show_changes(found, output)


def _show_changes(found: Recorded, output: Output) -> None:
    from marless.jobs.asynchronous_run import version_report
    from marless.jobs.explanation import changes

    rows = [change.to_json() for change in changes(found.records)]
    if output is Output.jsonl:
        for row in rows:
            data(json.dumps(row))
    else:
        about = {"job": found.job, "rounds": len(found.records), "changes": rows}
        if report := version_report(found.records):
            about["versions"] = dataclasses.asdict(report)
        show_object(about, found.job, output)


def _show_chapters(found: Recorded) -> None:
    from rich.table import Table

    from marless.jobs.asynchronous_run import version_report

    shown, rows = console(), list(_rows(found.records))
    if shown.width < _WIDTH:
        for row in rows:  # the decision and its rule, and below it the reason
            first = f"{row.rounds}: {', '.join(filter(None, (row.change, row.to)))} (by {row.rule})"
            lines = textwrap.wrap(first, shown.width, subsequent_indent=_DEEPER)
            shown.print("\n".join([*lines, *_indented(row.because, _DEEPER, shown.width)]), soft_wrap=True)
    elif rows:
        table = Table(box=None, pad_edge=False)
        table.add_column("rounds", no_wrap=True)
        for name in ("change", "to", "rule", "because"):
            table.add_column(name)
        for row in rows:
            table.add_row(row.rounds, row.change, row.to, row.rule, row.because, style="bold" if row.opens else None)
        shown.print(table)
    if report := version_report(found.records):
        shown.print("\n".join(textwrap.wrap(str(report), min(shown.width, _WIDTH))), soft_wrap=True)


class _Row(NamedTuple):
    """One row of the explanation: rounds with the same decision for the same kind of reason."""

    rounds: str
    change: str
    to: str
    rule: str
    because: str
    opens: bool = False
    """True for the first row of a chapter."""


def _rows(records: Sequence[RoundRecord]) -> Iterator[_Row]:
    from marless.jobs.explanation import chapters

    for chapter in chapters(records):
        opening, groups = chapter.opening, chapter.groups
        decision = opening.decision
        single = len(groups) == 1 and not groups[0].varies
        reason = decision.reason if single else _of(opening.round, decision)
        rounds = _rounds(chapter.first, chapter.last)
        to = f"{_count(len(decision.outcome.split()), 'group')}: {decision.outcome}"
        yield _Row(rounds, opening.what, to, decision.rule, reason, opens=True)
        for stretch in groups[1:]:
            yield _Row(_numbers(stretch), "same groups", "", stretch.decision.rule, _reason(stretch))
        for stretch in chapter.actors:
            change, to = _course(stretch)
            yield _Row(_numbers(stretch), change, to, stretch.decision.rule, _reason(stretch))


def _indented(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)


def _numbers(stretch: Stretch) -> str:
    """The rounds of a stretch: "  5–7", or "  4 of 5–20" if they are not successive."""
    count = "" if stretch.successive else f"{len(stretch.rounds)} of "
    return f"  {count}{_rounds(stretch.first, stretch.last)}"


def _reason(stretch: Stretch) -> str:
    """The reason, with its round if other rounds' reasons have other numbers."""
    return _of(stretch.decided, stretch.decision) if stretch.varies else stretch.decision.reason


def _of(round_: int, decision: Decision) -> str:
    return f"round {round_ + 1}: {decision.reason}"


def _rounds(first: int, last: int) -> str:
    return f"{first + 1}" if first == last else f"{first + 1}–{last + 1}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _course(stretch: Stretch) -> tuple[str, str]:
    """Whether the number of actors rose or fell, and how: ("more actors", "2 → 3 → 5 actors")."""
    values = [*([] if stretch.before is None else [stretch.before]), *stretch.actors]
    # The successive different numbers, beginning with that before the stretch.
    path = [now for before, now in zip([None, *values], values, strict=False) if now != before]
    change = ""
    if stretch.successive and path[0] != values[-1]:
        change = "more actors" if values[-1] > path[0] else "fewer actors"
    if stretch.successive and len(path) <= _LONGEST_PATH:
        return change, f"{' → '.join(map(str, path))} actors"
    mean = sum(stretch.actors) / len(stretch.actors)
    return change, f"{min(stretch.actors)} to {max(stretch.actors)} actors, mean {mean:.1f}"


def _show_round(found: Recorded, number: int, output: Output) -> None:
    by_round = {record.round + 1: record for record in found.records}
    if number not in by_round:
        raise NotFoundError(f"job {found.job} has no round {number}; {len(by_round)} rounds are recorded")
    record, before = by_round[number], by_round.get(number - 1)
    if output is not Output.table:
        show_object(_fields(record), found.job, output)
        return
    actors, groups = _count(record.actors, "actor"), _count(len(record.groups), "group")
    data(f"round {number} of {len(by_round)} of job {found.job}: {actors}, {groups}")
    width = console().width
    if record.aggregation:
        data("\n".join(["", *_version(record.aggregation)]))
    earlier = {each.kind: each.outcome for each in before.decisions} if before else {}
    for decision in record.decisions:
        was = earlier.get(decision.kind, decision.outcome)
        changed = "" if was == decision.outcome else f" (before: {was})"
        first = f"{decision.kind} by {decision.rule}: {decision.outcome}{changed}"
        data("\n".join(["", *textwrap.wrap(first, width), *_indented(decision.reason, _INDENT, width)]))
        if decision.inputs:
            # Inputs of a decision as YAML: nested names indented, lists on one line, floats to a few digits.
            import yaml

            room = min(width, _WIDTH) - len(_INDENT)
            text: str = yaml.safe_dump(
                _short(decision.inputs), sort_keys=False, default_flow_style=None, width=room, allow_unicode=True
            )
            data("\n".join(f"{_INDENT}{line}" for line in text.splitlines()))


def _version(made: AggregationRecord) -> Iterator[str]:
    """How a version came about, a line for each gradient."""
    bound = "no bound" if made.bound is None else f"bound {made.bound:.3g}"
    yield f"{_count(len(made.gradients), 'gradient')}, aggregated by {made.because}, {bound}:"
    for each in made.gradients:
        rollouts = " ".join(map(str, each.rollouts))
        yield (
            f"{_INDENT}learner {each.learner}: staleness {each.staleness}, weight {each.weight:.3f}, waited "
            f"{each.waited_s:.3f} s, {each.env_steps:,} env steps of rollouts {rollouts}"
        )
    yield f"events: {made.arrivals}"
    yield (
        f"under way: {_count(made.sampling, 'rollout')}, {_count(made.learning, 'learner')}; {made.waiting} rollouts "
        f"wait; so far {made.dropped} rollouts too old, {made.lost} lost"
    )


def _fields(record: RoundRecord) -> dict[str, Any]:  # Any: JSON
    return {
        "job": record.job,
        "round": record.round,
        "actors": record.actors,
        "groups": {group.policy: list(group.agents) for group in record.groups},
        "sources": {group.policy: group.source for group in record.groups if group.source},
        "decisions": [dataclasses.asdict(decision) for decision in record.decisions],
        **({"aggregation": dataclasses.asdict(record.aggregation)} if record.aggregation else {}),
    }


def _short(value: Any) -> Any:  # Any: JSON
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(name): _short(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_short(inner) for inner in value]
    return value
