"""JobSpec: everything that defines one training run, read from YAML and checked before any work starts.

A mistake is answered with one sentence per field: where it is, what was given, what is allowed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, SerializeAsAny, TypeAdapter, ValidationError, model_validator

from marless.algos import registry
from marless.algos.base import AlgorithmConfig, ModelSpec, Strict
from marless.envs.base import EnvSpaces
from marless.errors import SpecError, unknown_name

JOB_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class EnvSpec(Strict):
    """Which environment, and its own options."""

    name: str = Field(description="mpe/<game> or pettingzoo/<module>")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the environment")  # Any: YAML


class ActorsSpec(Strict):
    """How much each round samples: count · envs · steps env steps."""

    count: int = Field(2, ge=1, le=4096, description="actors per round, unless a scaling policy decides")
    envs: int = Field(80, ge=1, le=65536, description="environment copies per actor")
    steps: int = Field(25, ge=1, le=65536, description="time steps per copy; an actor starts with fresh episodes")
    timeout_s: float = Field(300.0, gt=0, description="an actor that takes longer is given to another worker")


class ScalingSpec(Strict):
    """How many actors the next round gets."""

    name: Literal["fixed"] = Field("fixed", description="fixed: actors.count in every round")


class SharingSpec(Strict):
    """Which agents share a policy and its learner."""

    name: Literal["fixed"] = Field("fixed", description="fixed: the groups below in every round")
    groups: Literal["independent", "shared"] | dict[str, tuple[str, ...]] = Field(
        "independent",
        description="independent: a policy per agent; shared: one per agent class; or policy name → agents",
    )


class EvaluationSpec(Strict):
    """Periodic greedy evaluation, and the random baseline measured once per job."""

    every: int = Field(10, ge=0, description="rounds between evaluations; 0: only at the end")
    episodes: int = Field(100, ge=1, description="episodes of one evaluation")
    random_episodes: int = Field(1000, ge=1, description="episodes that measure what chance scores")


class LearnerSpec(Strict):
    """Where updates run."""

    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto: a GPU if there is one")


class CheckpointSpec(Strict):
    """Policies as safetensors files in the run folder."""

    every: int = Field(50, ge=0, description="rounds between checkpoints; 0: only at the end")
    keep: int = Field(3, ge=1, description="newest checkpoints kept")


class StopSpec(Strict):
    """The job succeeds as soon as one of these is reached; at least one must be set."""

    rounds: int | None = Field(None, ge=1)
    env_steps: int | None = Field(None, ge=1, description="env steps sampled for training")
    greedy_return: float | None = Field(
        None, alias="return", description="mean greedy evaluation return per agent reached"
    )
    wall_s: float | None = Field(None, gt=0, description="seconds since the first round started")

    @model_validator(mode="after")
    def _some_rule(self) -> StopSpec:
        if self.model_dump(exclude_none=True) == {}:
            raise ValueError("set at least one of rounds, env_steps, return, wall_s: a job must be able to end")
        return self


def _algorithm(value: object) -> AlgorithmConfig:
    if isinstance(value, AlgorithmConfig):
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise ValueError("needs a name, e.g. `algorithm: {name: ippo}`")
    return registry.algorithm(str(value["name"])).config_type.model_validate(dict(value))


class JobSpec(Strict):
    """One training run. Equal specs and seeds give equal results in synchronous mode."""

    name: str = Field("job", pattern=JOB_NAME, description="lower-case letters, digits and dashes")
    seed: int = Field(0, ge=0, le=2**31 - 1)
    env: EnvSpec
    algorithm: Annotated[SerializeAsAny[AlgorithmConfig], BeforeValidator(_algorithm)]
    model: ModelSpec = ModelSpec()  # type: ignore[call-arg]  # pydantic's plugin-free view of Field defaults
    actors: ActorsSpec = ActorsSpec()  # type: ignore[call-arg]
    scaling: ScalingSpec = ScalingSpec()  # type: ignore[call-arg]
    sharing: SharingSpec = SharingSpec()  # type: ignore[call-arg]
    evaluation: EvaluationSpec = EvaluationSpec()  # type: ignore[call-arg]
    learner: LearnerSpec = LearnerSpec()  # type: ignore[call-arg]
    checkpoint: CheckpointSpec = CheckpointSpec()  # type: ignore[call-arg]
    stop: StopSpec

    def to_json(self) -> str:
        """The resolved spec as JSON, every default written out."""
        return self.model_dump_json(by_alias=True)

    def to_yaml(self) -> str:
        """The resolved spec as YAML, every default written out."""
        return yaml.safe_dump(self.model_dump(mode="json", by_alias=True), sort_keys=False)


def from_json(text: str) -> JobSpec:
    """Read what `JobSpec.to_json` wrote; raises SpecError."""
    return parse(json.loads(text), "spec")


def spaces_to_json(spaces: EnvSpaces) -> str:
    """The spaces of a job's environment, for services that need not be able to make it."""
    return json.dumps(dataclasses.asdict(spaces))


def spaces_from_json(text: str) -> EnvSpaces:
    """Read what `spaces_to_json` wrote."""
    return TypeAdapter(EnvSpaces).validate_python(json.loads(text))


def parse(document: object, source: str) -> JobSpec:
    """Check a YAML or JSON document; raises SpecError with one line per mistake, each starting with `source`."""
    if not isinstance(document, Mapping):
        raise SpecError(f"{source}: a job is a mapping of sections (env, algorithm, stop, …), got {document!r}")
    try:
        return JobSpec.model_validate(dict(document))
    except ValidationError as error:
        raise SpecError("\n".join(_sentences(error, source))) from None
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None


def load(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job file and apply `a.b=value` overrides (values are YAML); raises SpecError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror}); give the path of a job file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if isinstance(document, dict):
        for override in overrides:
            _override(document, override)
    return parse(document, str(path))


def _override(document: dict[str, Any], override: str) -> None:  # Any: YAML
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise SpecError(f"--set {override!r}: write it as section.field=value")
    *sections, field = key.split(".")
    for section in sections:
        inner = document.setdefault(section, {})
        if isinstance(inner, str) and section == "algorithm":
            inner = document[section] = {"name": inner}
        if not isinstance(inner, dict):
            raise SpecError(f"--set {override!r}: {section} is {inner!r}, not a section with fields")
        document = inner
    try:
        document[field] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise SpecError(f"--set {override!r}: {text!r} is not a YAML value") from None


def _sentences(error: ValidationError, source: str) -> list[str]:
    sentences = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"] if part not in ("independent", "shared"))
        if detail["type"] == "extra_forbidden":
            sentences.append(f"{source}: {where}: {_unknown_field(error, detail['loc'])}")
        elif detail["type"] == "missing":
            sentences.append(f"{source}: {where}: is missing; it has no default")
        else:
            message = detail["msg"].removeprefix("Value error, ")
            given = "" if detail["type"] == "value_error" else f"got {detail['input']!r}; "
            sentences.append(f"{source}: {where or 'job'}: {given}{message[:1].lower()}{message[1:]}")
    return sentences


def _unknown_field(error: ValidationError, loc: tuple[int | str, ...]) -> str:
    *sections, field = loc
    model: type[Strict] | None = JobSpec
    for section in sections:
        known = model.model_fields.get(str(section)) if model else None
        annotation = known.annotation if known else None
        model = annotation if isinstance(annotation, type) and issubclass(annotation, Strict) else None
    if model is None or model is AlgorithmConfig:
        return f"there is no field {str(field)!r} here"
    return unknown_name("field", str(field), [f.alias or name for name, f in model.model_fields.items()])
