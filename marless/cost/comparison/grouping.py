"""Which runs belong together in a picture, and what their group is called."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from marless.core.errors import SpecError
from marless.jobs.presets import training_key
from marless.jobs.spec import JobSpec

SETTINGS, JOB, ID = "settings", "job", "id"
_NO_DIFFERENCE = ("name", "seed", "sinks")
"""Sections that do not change what a job trains on average."""
_SEED = re.compile(r"-seed\d+$")


def grouped(runs: Sequence[tuple[str, JobSpec]], by: str = SETTINGS) -> dict[str, tuple[int, ...]]:
    """The groups of runs by label, in the order of their first runs; a run is given by its index.

    Args:
        runs: Job ids and specs.
        by: `settings`: runs that differ in the seed alone are a group; `job`: each run is its own; `id`: runs whose ids
            differ in a last "-seedN" alone; or fields of the job, such as "algorithm.name,algorithm.lr": runs that have
            the same values there. A section stands for its `name`, if it has one.

    Raises SpecError, naming the nearest field, if no job has a field.
    """
    known = [dict(_leaves(json.loads(spec.to_json()))) for _, spec in runs]
    fields: list[str] = []
    match by:
        case "settings":
            keys = [training_key(spec.model_copy(update={"seed": 0})) for _, spec in runs]
        case "job":
            keys = [str(number) for number in range(len(runs))]
        case "id":
            keys = [_SEED.sub("", run) for run, _ in runs]
        case _:
            fields = [_field(name.strip(), known) for name in by.split(",")]
            keys = [json.dumps([_value(values, field) for field in fields]) for values in known]
    members: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    found = list(members.values())
    if by in (SETTINGS, JOB, ID):
        labels = _labels(found, [run for run, _ in runs], known, by)
    else:
        labels = _values([known[each[0]] for each in found], fields)
    return dict(zip(_distinct(labels), map(tuple, found), strict=True))


def differing(specs: Sequence[JobSpec], *, billed: bool) -> list[str]:
    """The fields, beside the seed, that are not equal in all of these jobs; its prices only if `billed`."""
    known = [dict(_leaves(json.loads(spec.to_json()))) for spec in specs]
    ignored = ("bill.accounting",) if billed else ("bill.",)  # a plot chooses the accounting itself
    return [field for field in _differing(known) if not field.startswith(ignored)]


def _leaves(document: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:  # Any: JSON
    """The fields of a job by dotted name."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def _field(name: str, known: Sequence[Mapping[str, Any]]) -> str:  # Any: JSON
    fields = dict.fromkeys(field for values in known for field in values)
    found = next((each for each in (name, f"{name}.name") if each in fields), None)
    if found is None and any(field.startswith(f"{name}.") for field in fields):
        found = name
    if found is None:
        near = get_close_matches(name, [*fields, SETTINGS, JOB, ID], n=1)
        hint = f"did you mean {near[0]}?" if near else "`marless settings` lists them"
        raise SpecError(f"--group: no job has a field {name!r}; {hint}")
    return found


def _labels(
    groups: Sequence[Sequence[int]], ids: Sequence[str], known: Sequence[Mapping[str, Any]], by: str
) -> list[str]:
    """Job ids where each group is one run; else what is different between the groups."""
    if by == JOB or all(len(each) == 1 for each in groups):
        return [ids[each[0]] for each in groups]
    bases = [{_SEED.sub("", ids[index]) for index in each} for each in groups]
    if by == ID or len(groups) == 1:
        return [
            next(iter(base)) if len(base) == 1 else str(known[each[0]]["name"])
            for base, each in zip(bases, groups, strict=True)
        ]
    firsts = [known[each[0]] for each in groups]
    return _values(firsts, _telling(firsts))


def _telling(groups: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: JSON
    """A few fields that tell the groups apart: names first, and only such as divide them further."""
    differing = _differing(groups)
    # How often a job is evaluated follows from its length, unless it is given.
    differing.sort(key=lambda field: (not field.endswith(".name"), field == "evaluation.every"))
    chosen: list[str] = []
    count = 1
    for field in differing:
        parts = len({tuple(_text(values, each) for each in (*chosen, field)) for values in groups})
        if parts > count:
            chosen.append(field)
            count = parts
    return chosen


def _differing(known: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: JSON
    """The fields that are not equal in all of these jobs, without those that change nothing on average."""
    fields = dict.fromkeys(field for values in known for field in values)
    return [
        field
        for field in fields
        if field.partition(".")[0] not in _NO_DIFFERENCE and len({_text(values, field) for values in known}) > 1
    ]


def _values(groups: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> list[str]:  # Any: JSON
    """Each group's values of the fields: "vdn lr=0.001"; the value alone of what is a name."""
    last = [field.rpartition(".")[2] for field in fields]
    names = {
        field: "" if field.endswith(".name") else f"{name if last.count(name) == 1 else field}="
        for field, name in zip(fields, last, strict=True)
    }
    return [" ".join(f"{names[field]}{_text(values, field)}" for field in fields) for values in groups]


def _value(values: Mapping[str, Any], field: str) -> Any:  # Any: JSON
    """The value of a field, or all of a mapping; "none" where a job has neither."""
    inside = {name[len(field) + 1 :]: value for name, value in values.items() if name.startswith(f"{field}.")}
    return values.get(field, inside or "none")


def _text(values: Mapping[str, Any], field: str) -> str:  # Any: JSON
    value = _value(values, field)
    return value if isinstance(value, str) else json.dumps(value)


def _distinct(labels: Sequence[str]) -> list[str]:
    """The labels, numbered where several groups have the same."""
    often, seen = Counter(labels), Counter[str]()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(f"{label} ({seen[label]})" if often[label] > 1 else label)
    return found
