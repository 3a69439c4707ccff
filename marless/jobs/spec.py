"""JobSpec: everything that defines one training run, read from YAML and checked before any work starts.

Error messages have one sentence per invalid field: where it is, what was given, what is allowed.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from marless.core import documents
from marless.core.errors import SpecError, shown, unknown_name
from marless.core.settings import CurvatureSpec, FunctionsSpec
from marless.core.validation import AnySection, Strict, name_of, named, validation_sentences
from marless.jobs import prices as price_tables
from marless.jobs.scaling.base import SCALING_POLICIES, ScalingConfig
from marless.jobs.schedules.base import SCHEDULES, ScheduleConfig
from marless.jobs.sections import (
    ActorsSpec,
    BillSpec,
    CheckpointSpec,
    EnvSpec,
    EvaluationSpec,
    LearnerSpec,
    StartSpec,
    StopSpec,
)
from marless.jobs.sharing.base import SHARING_POLICIES, SharingConfig
from marless.jobs.sinks.base import SINKS, SinkConfig
from marless.learning.algos import registry
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.nets.kinds import is_by_hand
from marless.learning.nets.model import ModelSpec

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces

MOST_SINKS = 8
CURVE_POINTS = 10
"""Greedy evaluations that a job has at least, as far as its rounds allow, unless it says how often."""
_JOB_FILES = {".json", ".yaml", ".yml"}
_PLACES = [each / "examples" for each in Path(__file__).parents[1:3]]
EXAMPLES = next((each for each in _PLACES if (each / "spread.yaml").is_file()), _PLACES[0])
"""Jobs that come with marless: in the package as it is installed, or beside it in a checkout."""
JOB_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


def _sharing(name: str) -> AnySection:
    if name in ("shared", "independent"):
        raise SpecError(f"unknown sharing policy {name!r}; write sharing: {{groups: {name}}}")
    return SHARING_POLICIES.find(name).config_type


_TYPE_OF: Mapping[str, Callable[[str], AnySection]] = {
    "algorithm": lambda name: registry.algorithm(name).config_type,
    "schedule": lambda name: SCHEDULES.find(name).config_type,
    "scaling": lambda name: SCALING_POLICIES.find(name).config_type,
    "sharing": _sharing,
    "sinks": lambda name: SINKS.find(name).config_type,
}
"""The config type of a section whose fields depend on its name, by that name; raises SpecError for an unknown one."""
_DEFAULTS = {"schedule": "synchronous", "scaling": "fixed", "sharing": "fixed"}
"""The names of sections that are given without one."""


def _named(section: str, base: AnySection) -> BeforeValidator:
    """Reads a section that is a name or a mapping with a name, as the config type of that name."""
    default = _DEFAULTS.get(section)
    example = "sinks: [{name: tensorboard}]" if section == "sinks" else f"{section}: {{name: {default or 'ippo'}}}"
    return BeforeValidator(lambda value: named(value, base, _TYPE_OF[section], example, default))


def _few(value: object) -> object:
    """Raises ValueError for too many sinks before any is looked up, which takes milliseconds each."""
    if isinstance(value, list | tuple) and len(value) > MOST_SINKS:
        raise ValueError(f"{len(value)} sinks; a job has {MOST_SINKS} at most")
    return value


class JobSpec(Strict):
    """One training run. Equal specs and seeds give equal results in synchronous mode."""

    name: str = Field("job", pattern=JOB_NAME, description="lower-case letters, digits and dashes")
    seed: int = Field(0, ge=0, le=2**31 - 1)
    env: Annotated[
        EnvSpec,
        BeforeValidator(
            lambda value: {"name": value} if isinstance(value, str) else value, json_schema_input_type=str | EnvSpec
        ),
    ]
    algorithm: Annotated[SerializeAsAny[AlgorithmConfig], _named("algorithm", AlgorithmConfig)]
    model: ModelSpec = ModelSpec()
    actors: ActorsSpec = ActorsSpec()  # type: ignore[call-arg]  # pydantic's plugin-free view of Field defaults
    schedule: Annotated[SerializeAsAny[ScheduleConfig], _named("schedule", ScheduleConfig)] = Field(
        "synchronous", validate_default=True, description="when rounds are rolled out and trained"
    )
    scaling: Annotated[SerializeAsAny[ScalingConfig], _named("scaling", ScalingConfig)] = Field(
        "fixed", validate_default=True, description="how many actors the next round gets"
    )
    sharing: Annotated[SerializeAsAny[SharingConfig], _named("sharing", SharingConfig)] = Field(
        "fixed", validate_default=True, description="which agents share a policy and its learner"
    )
    curvature: CurvatureSpec = CurvatureSpec()
    functions: FunctionsSpec = FunctionsSpec()
    bill: BillSpec = BillSpec()  # type: ignore[call-arg]
    evaluation: EvaluationSpec = EvaluationSpec()  # type: ignore[call-arg]
    learner: LearnerSpec = LearnerSpec()  # type: ignore[call-arg]
    checkpoint: CheckpointSpec = CheckpointSpec()  # type: ignore[call-arg]
    start: StartSpec = StartSpec()  # type: ignore[call-arg]
    sinks: Annotated[
        tuple[Annotated[SerializeAsAny[SinkConfig], _named("sinks", SinkConfig)], ...],
        BeforeValidator(_few),
    ] = Field(
        (),
        description="where curves go beside the run folder: tensorboard, wandb, mlflow, or your own",
    )
    stop: StopSpec

    @field_validator("schedule")
    @classmethod
    def _schedule_fits_algorithm(cls, schedule: ScheduleConfig, info: ValidationInfo) -> ScheduleConfig:
        # Fields are validated in the order of the class, in which the algorithm comes before the schedule.
        algorithm = info.data.get("algorithm")  # missing if it is not valid
        return schedule.fitted(algorithm) if algorithm else schedule

    @model_validator(mode="after")
    def _return_is_measured(self) -> JobSpec:
        if self.stop.greedy_return is not None and self.evaluation.every == 0:
            raise ValueError(
                "stop.return and evaluation.every: 0 exclude each other: a return is reached only where it is "
                "measured; evaluate every so many rounds"
            )
        return self

    @model_validator(mode="after")
    def _best_is_measured(self) -> JobSpec:
        if self.checkpoint.best and self.evaluation.every == 0:
            raise ValueError(
                "checkpoint.best and evaluation.every: 0 exclude each other: only the last policies are evaluated, and "
                "would be the best; evaluate every so many rounds"
            )
        return self

    @model_validator(mode="after")
    def _torch_computes_the_gradients(self) -> JobSpec:
        if self.learner.precision == "float32":
            return self
        if not self.algorithm.lowers_precision:
            raise ValueError(
                f"learner.precision: learners of {self.algorithm.name} compute in float32 only; leave it out"
            )
        if is_by_hand(kind := self.model.kind):
            raise ValueError(
                f"learner.precision: {self.learner.precision} is for nets that torch differentiates, such as nature, "
                f"impala, entities and modules; those of {kind} are computed by hand in float32; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _each_sink_once(self) -> JobSpec:
        if twice := {sink.name for sink in self.sinks if [other.name for other in self.sinks].count(sink.name) > 1}:
            raise ValueError(f"sinks: {', '.join(sorted(twice))} is given twice; a job writes to each sink once")
        return self

    @property
    def nets(self) -> ModelSpec:
        """The model with `agent_id` decided: by default, an id is an input where agents share a policy from the start.

        Not where a sharing policy may merge them later: they would then act by weights for ids of which each policy has
        trained one.
        """
        if self.model.agent_id is not None:
            return self.model
        groups = self.sharing.groups
        shared = groups == "shared" or (not isinstance(groups, str) and any(len(each) > 1 for each in groups.values()))
        return self.model.model_copy(update={"agent_id": shared})

    @property
    def captures_steps(self) -> bool:
        """True if a GPU repeats its learners' gradient steps as captured graphs."""
        return self.learner.graphs and self.algorithm.captures_steps

    @property
    def minibatch_samples(self) -> int:
        """Samples of a policy in a gradient step, for a number of actors that no scaling policy has changed yet."""
        config, actors = self.algorithm, self.actors
        minibatches: int | None = getattr(config, "minibatches", None)
        batch: int = getattr(config, "batch_size", actors.envs * actors.steps)
        return max(actors.count * actors.envs * actors.steps // minibatches, 1) if minibatches else batch

    def to_json(self) -> str:
        """The resolved spec as JSON, including all defaults."""
        return self.model_dump_json(by_alias=True)

    def to_yaml(self) -> str:
        """The resolved spec as YAML, including all defaults."""
        return documents.to_yaml(self.model_dump(mode="json", by_alias=True))


def from_json(text: str) -> JobSpec:
    """Parse the output of `JobSpec.to_json`; raises SpecError."""
    return parse(documents.from_json(text, "spec"), "spec")


def spaces_to_json(spaces: EnvSpaces) -> str:
    """The spaces of a job's environment as JSON, for services that cannot create the environment."""
    return json.dumps(dataclasses.asdict(spaces))


def spaces_from_json(text: str) -> EnvSpaces:
    """Parse the output of `spaces_to_json`; raises SpecError."""
    from marless.learning.envs.base import check_spaces

    try:
        # Infinity is allowed: bounds of observations and actions may be infinite.
        spaces = _spaces_type().validate_python(documents.from_json(text, "spaces", finite=False))
    except ValidationError as error:
        raise SpecError(f"spaces: {error.error_count()} fields are not fields of an environment's spaces") from None
    check_spaces(spaces)
    return spaces


@cache
def _spaces_type() -> TypeAdapter[EnvSpaces]:
    from marless.learning.envs.base import EnvSpaces

    return TypeAdapter(EnvSpaces)  # cached, because building it takes milliseconds


def parse(document: object, source: str) -> JobSpec:
    """Validate a parsed document; raises SpecError with one line per error, each starting with `source`."""
    if not isinstance(document, Mapping):
        given = "nothing" if document is None else shown(document)
        raise SpecError(f"{source}: a job is a mapping of sections (env, algorithm, stop, …), got {given}")
    try:
        spec = JobSpec.model_validate(dict(document))
    except ValidationError as error:
        found = validation_sentences(error, JobSpec, _inner_types(document))
        raise SpecError("\n".join(f"{source}: {sentence}" for sentence in found)) from None
    return spec if "every" in spec.evaluation.model_fields_set else _with_curve(spec)


def _with_curve(spec: JobSpec) -> JobSpec:
    """The spec with greedy evaluations close enough that a job of few rounds has `CURVE_POINTS` of them, too."""
    actors = spec.actors
    bounds = [spec.stop.rounds] if spec.stop.rounds else []
    if spec.stop.env_steps:
        bounds.append(math.ceil(spec.stop.env_steps / (actors.count * actors.envs * actors.steps)))
    if not bounds:
        return spec
    every = min(spec.evaluation.every, max(1, min(bounds) // CURVE_POINTS))
    return spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"every": every})})


def _inner_types(document: Mapping[str, Any]) -> dict[tuple[str, ...], AnySection]:  # Any: YAML
    """The pydantic models of the sections whose type depends on their name, by the section's path in the job."""
    types: dict[tuple[str, ...], AnySection] = {}
    for section, default in _DEFAULTS.items():
        # A name that is unknown is an error already, which validation has found where it looked for the name.
        with suppress(SpecError):
            types[section,] = _TYPE_OF[section](str(name_of(document.get(section)) or default))
    given = document.get("sinks")
    for index, sink in enumerate(given[:MOST_SINKS] if isinstance(given, list | tuple) else ()):
        with suppress(SpecError):
            types["sinks", str(index)] = _TYPE_OF["sinks"](str(name_of(sink)))
    return types


def job_document(path: Path) -> object:
    """Read the job file at a path that a user gave ("-": standard input), or the job that is meant by a name.

    A name is that of an example (`spread`), or of an environment (`mpe/simple_spread`): its example, or else IPPO with
    its defaults. A file of that name comes first. Raises SpecError.
    """
    from marless.learning.envs.registry import environments  # here, because of NumPy

    name = path.as_posix()
    if "=" in name and not path.exists():
        raise SpecError(f"{name} is no job; if it is a setting of one, name the job first: JOB --set {name}")
    ours = name.partition("/")[0] in {each.partition("/")[0] for each in environments()}
    # Modules have dots, too: pettingzoo/sisl.multiwalker_v9, gymnasium/my.games:Maze-v0.
    dotted = path.suffix and not (ours and path.suffix.lower() not in _JOB_FILES)
    if name == "-" or dotted or (path.exists() and not path.is_dir()):
        return documents.given(path)
    examples = {each.stem: each for each in sorted(EXAMPLES.glob("*.yaml"), key=lambda each: len(each.stem))}
    if name in examples:
        return documents.from_yaml(examples[name])
    if not ours:
        if path.exists():
            return documents.given(path)  # says that it is a directory
        raise SpecError(unknown_name("job file or example", name, examples))
    jobs = (documents.from_yaml(each) for each in examples.values())
    plain = {
        "name": re.sub("[^a-z0-9]+", "-", path.name.lower()).strip("-"),
        "env": {"name": name},
        "algorithm": {"name": "ippo"},
        "stop": {"env_steps": 1_000_000},
    }
    return next((job for job in jobs if isinstance(job, dict) and job["env"]["name"] == name), plain)


def load(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job as `job_document` does, and the files that it names, and apply `a.b=value` overrides.

    Values of overrides are YAML. For use on the user's machine only, because it reads the files. Raises SpecError.
    """
    return of_document(job_document(path), overrides, documents.name_of(path))


def of_document(document: object, overrides: Sequence[str], source: str) -> JobSpec:
    """Load a job from a parsed document, which is not modified. Raises SpecError."""
    if isinstance(document, dict):
        document = copy.deepcopy(document)
        for override in overrides:
            override_field(document, override)
        document = with_files(document, source)
    return parse(document, source)


def load_resolved(path: Path) -> JobSpec:
    """Read the spec.yaml of a run folder; it may be untrusted, so files named in it are not read.

    Raises SpecError, NotFoundError, CorruptError or UnavailableError.
    """
    return parse(documents.stored(path), str(path))


def with_stop(spec: JobSpec, rules: object, source: str) -> JobSpec:
    """The spec with its stop rules updated: each given rule replaces the one of the same name, null removes it.

    Raises SpecError, each line starting with `source`, for invalid rules, and if no rule is left.
    """
    document = json.loads(spec.to_json())
    # Rules that are no mapping are handed on as they are, and `parse` says what is wrong with them.
    return parse(document | {"stop": document["stop"] | rules if isinstance(rules, dict) else rules}, source)


def with_files(document: Mapping[str, Any], source: str) -> dict[str, Any]:  # Any: YAML
    """A job's document with the paths of the user's files replaced by their contents; runs on the user's machine.

    A submitted job never contains paths, because the coordinator would read files of its own machine. Raises SpecError,
    with one line per error, each starting with `source`, for a file that cannot be read or is invalid.
    """
    read = dict(document)
    if isinstance(bill := read.get("bill"), Mapping) and isinstance(path := bill.get("prices"), str):
        try:
            read["bill"] = {**bill, "prices": price_tables.read(path)}
        except SpecError as error:
            raise SpecError("\n".join(f"{source}: bill.prices: {line}" for line in str(error).splitlines())) from None
    if isinstance(scaling := read.get("scaling"), Mapping) and isinstance(name := scaling.get("name"), str):
        try:
            config_type = SCALING_POLICIES.find(name).config_type
        except SpecError:
            return read  # validation reports the name with all other errors
        try:
            read["scaling"] = config_type.with_files(scaling)
        except SpecError as error:
            raise SpecError(f"{source}: {error}") from None
    return read


def override_field(document: dict[str, Any], override: str) -> None:  # Any: YAML
    """Set a field of a job's document, given as section.field=value (the value is YAML); raises SpecError."""
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise SpecError(f"--set {override!r}: write it as section.field=value")
    *sections, field = key.split(".")
    for section in sections:
        inner = document.setdefault(section, {})
        # `algorithm: ippo` is short for a section of that name, whose fields can be set like those of others.
        if isinstance(inner, str) and section in ("algorithm", "schedule", "scaling", "sharing", "similarity"):
            inner = document[section] = {"name": inner}
        if not isinstance(inner, dict):
            raise SpecError(f"--set {override!r}: {section} is {inner!r}, not a section with fields")
        document = inner
    try:
        document[field] = documents.yaml_of(text, field)
    except SpecError:
        raise SpecError(f"--set {override!r}: {text!r} is not a YAML value") from None
