"""Sweeps: one job with several seeds, and with several values for some of its fields.

A job's id depends only on its settings, so that repeating the command finds the jobs that it submitted before.

The results of a sweep in one table: its jobs, and the mean of each setting over its seeds.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marless.app.cli.options import Output
from marless.app.cli.output import (
    TableColumn,
    console,
    data,
    duration,
    fitted,
    harmless,
    job_fields,
    number,
    percent,
    show_object,
)
from marless.app.client import Job
from marless.core import documents
from marless.core.errors import SpecError
from marless.core.limits import check_id, is_id
from marless.jobs import spec as specs
from marless.jobs.spec import JobSpec
from marless.learning.algos import registry

_NO_ID = re.compile(r"[^a-z0-9]+")
_DIGEST = 8
_MOST_MISTAKES = 20
_MOST_TOLD = 40
_LONGEST_LABEL, _LONGEST_PREFIX = 20, 60


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A swept field and its values."""

    field: str
    values: tuple[str, ...]
    """The values as YAML."""
    labels: tuple[str, ...]
    """Short distinct labels of the values, for job ids."""


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One job of a sweep."""

    id: str
    setting: str
    """The swept fields for display: "lr=1e-3"; "" if only seeds differ."""
    seed: int
    spec: JobSpec


@dataclass(frozen=True, kw_only=True)
class SweptSetting:
    """One combination of the values of a sweep, for all its seeds."""

    values: Mapping[str, str]
    """Field → value, as they were given."""
    label: str
    """Part of job ids: "lr1e-3"; "" without a swept field."""
    shown: str
    """For display: "lr=1e-3"."""
    spec: JobSpec

    @property
    def told(self) -> str:
        """The values with whole fields, as they were given: "algorithm.lr=1e-3"."""
        return " ".join(f"{field}={value}" for field, value in self.values.items())


def axes(given: Sequence[str]) -> tuple[Axis, ...]:
    """Parse `--sweep section.field=a,b,c` options; raises SpecError, naming the invalid option."""
    found = [_axis(each) for each in given]
    if twice := {axis.field for axis in found if [other.field for other in found].count(axis.field) > 1}:
        raise SpecError(f"--sweep: {', '.join(sorted(twice))} is swept twice; give all of its values at once")
    return tuple(found)


def runs(
    document: object, source: str, *, prefix: str, overrides: Sequence[str], sweep: Sequence[Axis], seeds: int | None
) -> tuple[SweepRun, ...]:
    """All jobs of a sweep: for each setting all seeds, which count up from the job's.

    Raises SpecError with the errors of all settings, each once.
    """
    if seeds and any(axis.field == "seed" for axis in sweep):
        raise SpecError("--seeds and --sweep seed=… both give seeds; leave one out")
    found: list[SweepRun] = []
    for setting in settings(document, source, overrides=overrides, sweep=sweep):
        found += _seeded(setting, prefix or setting.spec.name, seeds)
    return tuple(found)


def settings(
    document: object, source: str, *, overrides: Sequence[str], sweep: Sequence[Axis]
) -> tuple[SweptSetting, ...]:
    """All combinations of the axes' values; raises SpecError with the errors of all, each once."""
    if clash := [axis.field for axis in sweep if any(each.partition("=")[0] == axis.field for each in overrides)]:
        raise SpecError(f"--sweep and --set both give {', '.join(clash)}; leave one out")
    names = _names(sweep)
    mistakes: dict[str, None] = {}
    found: list[SweptSetting] = []
    for chosen in itertools.product(*(zip(axis.values, axis.labels, strict=True) for axis in sweep)):
        values = {axis.field: value for axis, (value, _) in zip(sweep, chosen, strict=True)}
        own = [f"{field}={value}" for field, value in values.items()]
        try:
            base = document
            if "algorithm.name" in values and isinstance(document, dict):
                base = _of_algorithm(document, overrides, values["algorithm.name"], source)
            spec = specs.of_document(base, [*([] if base is not document else overrides), *own], source)
        except SpecError as error:
            mistakes |= dict.fromkeys(str(error).splitlines())
            continue
        # The name of an algorithm or policy says what it is.
        labels = [
            label if axis.field.endswith(".name") else f"{_label(names[axis.field])}{label}"
            for axis, (_, label) in zip(sweep, chosen, strict=True)
        ]
        shown = " ".join(f"{names[field]}={value}" for field, value in values.items())
        found.append(SweptSetting(values=values, label="-".join(labels), shown=shown, spec=spec))
    if mistakes:
        raise SpecError("\n".join(list(mistakes)[:_MOST_MISTAKES]))
    return tuple(found)


def _of_algorithm(document: dict[str, Any], overrides: Sequence[str], name: str, source: str) -> dict[str, Any]:
    """The job's document for another algorithm, without those settings of its own that this one does not have.

    Such a setting must have its default; raises SpecError, naming it, for one that was chosen.
    """
    document = copy.deepcopy(document)
    for override in overrides:
        specs.override_field(document, override)
    given = document.get("algorithm")
    if not isinstance(given, dict) or given.get("name") in (None, name) or name not in registry.ALGORITHMS.names():
        return document  # an unknown name is refused with all other mistakes
    own, theirs = specs.parse(document, source).algorithm, registry.algorithm(name).config_type
    defaults = type(own).model_validate({"name": own.name})
    lost = given.keys() - {field.name for field in dataclasses.fields(theirs)}
    if chosen := sorted(field for field in lost if getattr(own, field) != getattr(defaults, field)):
        raise SpecError(
            f"{source}: algorithm.name={name} has no setting {', '.join(chosen)}, which the job sets for {own.name}; "
            "leave it out of the job, or compare the two in jobs of their own"
        )
    document["algorithm"] = {field: value for field, value in given.items() if field not in lost}
    return document


def check_count(sweep: Sequence[Axis], seeds: int | None, allowed: int, source: str) -> None:
    """Raise SpecError with the list of jobs if there are more than `allowed`; called before any of them is built."""
    count = math.prod(len(axis.values) for axis in sweep) * (seeds or 1)
    if count <= allowed:
        return
    names = _names(sweep)
    settings = itertools.product(*([f"{names[axis.field]}={value}" for value in axis.values] for axis in sweep))
    told = [" ".join(each) for each in itertools.islice(settings, _MOST_TOLD) if each]
    more = math.prod(len(axis.values) for axis in sweep) - _MOST_TOLD
    listed = "".join(f"; {each}" for each in told) + (f"; and {more:,} more" if more > 0 else "")
    each_with = f", {seeds} seeds of each" if seeds and told else ""
    raise SpecError(
        f"{source}: this sweep would start {count:,} jobs{each_with}, and --yes allows {allowed}{listed}; "
        f"--yes {count} starts them all"
    )


def _axis(given: str) -> Axis:
    field, separator, text = given.partition("=")
    if not separator or not all(field.split(".")):
        raise SpecError(f"--sweep {given!r}: write it as section.field=value,value")
    if field == "name":
        raise SpecError("--sweep name=…: the name of a job does not change its training; sweep another field")
    values = _split(text)
    if "" in values:
        raise SpecError(f"--sweep {given!r}: a value is empty; write it as section.field=value,value")
    written: dict[str, str] = {}
    for value in values:
        try:
            parsed = documents.yaml_of(value, field)
        except SpecError:
            raise SpecError(f"--sweep {given!r}: {value!r} is not a YAML value") from None
        if first := written.get(canonical := _canonical(parsed)):
            both = value if first == value else f"{first} (also written {value})"
            raise SpecError(f"--sweep {given!r}: {both} is given twice; leave one out")
        written[canonical] = value
    return Axis(field=field, values=tuple(values), labels=_labels(values))


def _split(text: str) -> list[str]:
    """Split a list at commas outside of brackets."""
    values, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def _canonical(value: object) -> str:
    """One text for all ways to write a value: 1e-3 and 0.001, 16 and 16.0, -0.0 and 0, keys in another order."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Beyond 2**53, different whole numbers would have one text, as they have one float.
        return repr(float(value) + 0.0) if abs(value) < 2**53 else repr(value)  # -0.0 + 0.0 is 0.0
    if isinstance(value, list):
        return f"[{', '.join(map(_canonical, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_canonical(key)}: {_canonical(each)}' for key, each in value.items()))}}}"
    return repr(value)


def _names(sweep: Iterable[Axis]) -> dict[str, str]:
    """Field → display name: its last part, or the whole path if two fields have the same last part."""
    fields = [axis.field for axis in sweep]
    last = [field.rpartition(".")[2] for field in fields]
    return {field: name if last.count(name) == 1 else field for field, name in zip(fields, last, strict=True)}


def _label(text: str) -> str:
    return _NO_ID.sub("-", text.lower()).strip("-")


def _labels(values: Sequence[str]) -> tuple[str, ...]:
    """Labels of values for job ids; long or ambiguous ones end with a digest."""
    plain = [("minus" if value.startswith("-") else "") + _label(value) for value in values]

    def told(value: str, label: str) -> str:
        if label and len(label) <= _LONGEST_LABEL and plain.count(label) == 1:
            return label
        return f"{label[:12]}-{hashlib.sha256(value.encode()).hexdigest()[:_DIGEST]}".strip("-")

    return tuple(told(value, label) for value, label in zip(values, plain, strict=True))


def _seeded(setting: SweptSetting, prefix: str, seeds: int | None) -> list[SweepRun]:
    found = []
    for seed in range(setting.spec.seed, setting.spec.seed + (seeds or 1)):
        run_id = "-".join(filter(None, [prefix, setting.label, f"seed{seed}" if seeds else ""]))
        if not is_id(run_id) and is_id(prefix):  # it is too long
            run_id = f"{prefix[:_LONGEST_PREFIX]}-{hashlib.sha256(run_id.encode()).hexdigest()[:_DIGEST]}-seed{seed}"
        check_id(run_id)
        seeded = setting.spec.model_copy(update={"seed": seed})
        found.append(SweepRun(id=run_id, setting=setting.shown, seed=seed, spec=seeded))
    return found


@dataclass(frozen=True)
class _Row:
    """A row of the table: a job, or the mean of several."""

    name: str
    state: str
    jobs: Sequence[Job]

    def mean(self, of: Callable[[Job], float | None]) -> tuple[float | None, float | None]:
        """Mean of the known values of a quantity, and its standard error; None for what too few values do not tell."""
        known = [value for job in self.jobs if (value := of(job)) is not None]
        error = statistics.stdev(known) / len(known) ** 0.5 if len(known) > 1 else None
        return (statistics.fmean(known) if known else None), error


def show_sweep(runs: Sequence[SweepRun], jobs: Sequence[Job], output: Output) -> None:
    """Print the jobs of a sweep, with the mean of each setting."""
    match output:
        case Output.table:
            shown = console()
            shown.print(fitted(_columns(_rows(runs, jobs)), shown.width))
        case Output.name:
            for job in jobs:
                data(job.job)
        case Output.jsonl:
            for run, job in zip(runs, jobs, strict=True):
                data(json.dumps(_about(run, job)))
        case _:
            rows = [_about(run, job) for run, job in zip(runs, jobs, strict=True)]
            show_object({"jobs": rows, "settings": _settings(runs, jobs)}, "", output)


def show_planned(runs: Sequence[SweepRun], output: Output) -> None:
    """Print the jobs that a sweep would submit."""
    rows: list[dict[str, Any]] = [{"job": run.id, "setting": run.setting, "seed": run.seed} for run in runs]
    match output:
        case Output.table:
            shown = console()
            columns = [
                TableColumn(title=name, cells=[f"{row[name]}" for row in rows], right=name == "seed")
                for name in rows[0]
            ]
            shown.print(fitted([each for each in columns if any(each.cells)], shown.width))
        case Output.name | Output.jsonl:
            for row in rows:
                data(row["job"] if output is Output.name else json.dumps(row))
        case _:
            show_object({"jobs": rows}, "", output)


def _about(run: SweepRun, job: Job) -> dict[str, Any]:  # Any: JSON
    return {"setting": run.setting, "seed": run.seed} | job_fields(job)


def _settings(runs: Sequence[SweepRun], jobs: Sequence[Job]) -> list[dict[str, Any]]:  # Any: JSON
    """The mean of each setting over its seeds."""
    found = []
    for setting, members in _by_setting(runs, jobs).items():
        row = _Row(setting, "", members)
        mean, error = row.mean(lambda job: job.greedy_return)
        found.append(
            {
                "setting": setting,
                "seeds": len(members),
                "succeeded": sum(job.state == "SUCCEEDED" for job in members),
                "return": mean,
                "standard_error": error,
                "win_rate": row.mean(lambda job: job.win_rate)[0],
            }
        )
    return found


def _by_setting(runs: Sequence[SweepRun], jobs: Sequence[Job]) -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = {}
    for run, job in zip(runs, jobs, strict=True):
        found.setdefault(run.setting, []).append(job)
    return found


def _rows(runs: Sequence[SweepRun], jobs: Sequence[Job]) -> list[_Row]:
    """A row for every job, and after the jobs of a setting, if there are several, a row for their mean."""
    rows = []
    for setting, members in _by_setting(runs, jobs).items():
        rows += [_Row(job.job, job.state, [job]) for job in members]
        if len(members) > 1:
            done = sum(job.state == "SUCCEEDED" for job in members)
            name = f"mean of {setting}" if setting else "mean"
            rows.append(_Row(name, f"{done} of {len(members)}", members))
    return rows


def _columns(rows: Sequence[_Row]) -> list[TableColumn]:
    def column(title: str, of: Callable[[Job], float | None], text: Callable[[float], str], goes: int) -> TableColumn:
        means = (row.mean(of)[0] for row in rows)
        cells = ["" if mean is None else text(mean) for mean in means]
        return TableColumn(title=title, cells=cells, right=True, goes=goes)

    returns = (row.mean(lambda job: job.greedy_return) for row in rows)
    shown = [number(mean, error) for mean, error in returns]
    columns = [
        TableColumn(title="job", cells=[harmless(row.name) for row in rows]),
        TableColumn(title="state", cells=[row.state for row in rows]),
        TableColumn(title="return", cells=shown, right=True),
        column("random", lambda job: job.random_return, number, 2),
        column("won", lambda job: job.win_rate, percent, 1),
        column("rounds", lambda job: job.rounds, "{:,.0f}".format, 5),
        column("time", lambda job: (job.summary or {}).get("wall_s"), duration, 4),
        column("USD", lambda job: (job.summary or {}).get("cost_usd"), "{:.4f}".format, 3),
    ]
    return [each for each in columns if each.title != "won" or any(each.cells)]
