"""Presets: named combinations of scaling, sharing and accounting, for comparing jobs.

They are the five of Wei et al. 2025, §6 (serverful, serverless, and serverless with one or both policies of MARLess),
and variants of ours. A preset selects policies. If the job names the same policy, the job's settings for it apply,
otherwise that policy's defaults, which are those of the paper. A variant also sets fields of its policies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from marless.core import documents
from marless.core.errors import SpecError, unknown_name
from marless.jobs import spec as specs
from marless.jobs.prices import ACCOUNTINGS, Accounting
from marless.jobs.spec import JOB_NAME, JobSpec

_NAMED = ("scaling", "sharing", "schedule", "algorithm")
"""Sections whose fields depend on their `name`."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How to run a job, and by which accounting to count its cost."""

    name: str
    about: str
    """One-line description."""
    accounting: Accounting = "paper"
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Any: what a job file can hold
    """Section of the job → fields that the preset sets there."""
    noun: str = "preset"
    """What messages call it."""

    def applied(self, job: JobSpec) -> JobSpec:
        """The job with this preset applied; raises SpecError, naming the preset, if the result is invalid."""
        document = job.model_dump(mode="json", by_alias=True)
        for section, fields in self.sections.items():
            own: Any = document.get(section)  # Any: JSON
            # The job's fields for another policy of this section would not fit the preset's.
            other = section in _NAMED and own["name"] != fields.get("name", own["name"])
            document[section] = {**(own if isinstance(own, dict) and not other else {}), **fields}
        document["bill"]["accounting"] = self.accounting
        where = f"{self.noun} {self.name}"
        return specs.parse(specs.with_files(document, where), where)


_FIXED = {"scaling": {"name": "fixed"}}
_INDEPENDENT = {"sharing": {"name": "fixed", "groups": "independent"}}
_SCALING = {"scaling": {"name": "marless"}}
_SHARING = {"sharing": {"name": "marless"}}


def _lean(
    scaling: Mapping[str, str] | None = None, sharing: Mapping[str, str] | None = None
) -> Mapping[str, Mapping[str, str | float]]:
    """Sections of a variant in which only the average rule scales, on logarithms of C, and agents share until returns
    fall; `scaling` and `sharing` are further fields.
    """
    return {
        "scaling": {"name": "marless", "beta": 1.0, "compare": "logarithm", **(scaling or {})},
        "sharing": {"name": "marless", "split_threshold": -0.1, **(sharing or {})},
    }


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="vanilla",
            about="serverful: a machine for the whole run, a learner per agent, all actors in every round",
            accounting="serverful",
            sections=_FIXED | _INDEPENDENT,
        ),
        Preset(
            name="marless-minus",
            about="serverless without scaling and sharing: what vanilla runs, billed while it works",
            sections=_FIXED | _INDEPENDENT,
        ),
        Preset(name="no-scaling", about="learner sharing alone", sections=_FIXED | _SHARING),
        Preset(name="no-sharing", about="actor scaling alone", sections=_SCALING | _INDEPENDENT),
        Preset(name="marless", about="actor scaling and learner sharing, as printed", sections=_SCALING | _SHARING),
        Preset(
            name="marless-drawn",
            about="as marless, but a shared policy trains on as many samples as one agent has, drawn from its members'",
            sections=_SCALING | {"sharing": {"name": "marless", "samples": "drawn"}},
        ),
        Preset(
            name="marless-lean",
            about="the average rule alone scales, on logarithms of C; agents go on sharing until returns fall",
            sections=_lean(),
        ),
        Preset(
            name="marless-frugal",
            about="as marless-lean, but a policy that learns from several agents asks for so many fewer actors",
            sections=_lean({"count": "samples"}),
        ),
        Preset(
            name="marless-least",
            about="as marless-lean, but a shared policy trains on as many samples as one agent has",
            sections=_lean(sharing={"samples": "drawn"}),
        ),
        Preset(
            name="auto",
            about="actors and groups by what progress costs, measured in the job itself; nothing to set",
            accounting="billed",
            sections={"scaling": {"name": "auto"}, "sharing": {"name": "auto"}},
        ),
    )
}
"""Presets by name: the five of the paper, then variants. To add a variant, add an entry here."""


def preset(name: str) -> Preset:
    """Look up a preset by name, or in a file as FILE.yaml:NAME; raises SpecError with the nearest match."""
    if name in PRESETS:
        return PRESETS[name]
    file, separator, inner = name.rpartition(":")
    if separator:
        return _of_file(Path(file), inner)
    raise SpecError(unknown_name("preset", name, PRESETS))


def presets(names: str) -> tuple[Preset, ...]:
    """Look up comma-separated presets; raises SpecError for an unknown or repeated name, and for none at all."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise SpecError(f"no preset is given; known: {', '.join(PRESETS)}")
    found = tuple(preset(name) for name in wanted)
    for each in found:
        if [other.name for other in found].count(each.name) > 1:
            raise SpecError(f"preset {each.name} is named twice; name each once")
    return found


_LONGEST = 80
"""Characters of a setting that are shown."""


def own_settings(job: JobSpec) -> tuple[str, ...]:
    """Scaling, sharing and curvature settings that differ from the default: "sharing.threshold 0.05 (default 0.1)"."""
    found: list[str] = []
    for section, config in (("scaling", job.scaling), ("sharing", job.sharing), ("curvature", job.curvature)):
        given = to_jsonable_python(config)
        # sections that are no models of pydantic have defaults for all of their fields
        fields = type(config).model_fields.items() if isinstance(config, BaseModel) else ()
        required = [name for name, field in fields if field.is_required() and name != "name"]
        found += [f"{section}.{name} {_shown(given[name])} (no default)" for name in required]
        known = {name: given[name] for name in ("name", *required) if name in given}
        found += _differing(section, given, to_jsonable_python(type(config).model_validate(known)))
    return tuple(found)


def _differing(place: str, given: Any, default: Any) -> list[str]:  # Any: JSON
    if given == default:
        return []
    if isinstance(given, dict) and isinstance(default, dict) and given.keys() == default.keys():
        return [line for name in given for line in _differing(f"{place}.{name}", given[name], default[name])]
    return [f"{place} {_shown(given)} (default {_shown(default)})"]


def training_key(job: JobSpec) -> str:
    """A key that is equal for jobs that train identically.

    It covers the whole spec but the name, the sinks and, unless `stop.cost_usd` is set, the bill.
    """
    document = json.loads(job.to_json())
    for section in ("name", "sinks"):
        document.pop(section)
    if job.stop.cost_usd is None:
        document.pop("bill")
    return json.dumps(document, sort_keys=True)


def _shown(value: Any) -> str:  # Any: JSON
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"  # a scheduler's weights have 70 kB


def _of_file(path: Path, name: str) -> Preset:
    """Read a preset from a file that maps names to {about, accounting, and the sections of a job to set}."""
    document = documents.from_yaml(path, "file of presets, as FILE.yaml:NAME")
    if not isinstance(document, dict) or not all(isinstance(entry, dict) for entry in document.values()):
        raise SpecError(f"{path}: presets are a mapping of names to sections, e.g. `mine: {{sharing: {{gamma: 0}}}}`")
    if name not in document:
        raise SpecError(f"{path}: {unknown_name('preset', name, map(str, document))}")
    if name in PRESETS or not re.fullmatch(JOB_NAME, name):
        problem = (
            "is one of marless itself" if name in PRESETS else "has more than lower-case letters, digits and dashes"
        )
        raise SpecError(f"{path}: the name {name!r} {problem}; choose another; tables and job ids contain it")
    entry = dict(document[name])
    about, accounting = str(entry.pop("about", f"from {path}")), entry.pop("accounting", "paper")
    if accounting not in ACCOUNTINGS:
        raise SpecError(f"{path}: {name}.accounting: {accounting!r}; allowed: {', '.join(ACCOUNTINGS)}")
    for section, fields in entry.items():
        if not isinstance(fields, dict) or section == "bill":
            what = "is set by `accounting`" if section == "bill" else f"is {fields!r}, not a section with fields"
            raise SpecError(f"{path}: {name}.{section} {what}")
    return Preset(name=name, about=about, accounting=accounting, sections=entry)
