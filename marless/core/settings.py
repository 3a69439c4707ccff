"""Settings as frozen sections: fields with a type, bounds and a default, and constraints on which fields fit together.

`ReplaySpec(capacity=1000)` is checked when it is made, wherever its values come from: a program, or a job file. This
module imports no pydantic, so that the library (`marless.learning`) trains without it; pydantic models may have fields
whose type is a section.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from marless.core.errors import shown, unknown_name

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a list",
    dict: "a section with fields",
}
"""What sentences call the types of settings."""
FINITE = "a finite number"
BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": ("more than {gt}", operator.gt),
    "ge": ("at least {ge}", operator.ge),
    "lt": ("less than {lt}", operator.lt),
    "le": ("at most {le}", operator.le),
    "min_length": ("at least {min_length} {unit}", lambda value, least: len(value) >= least),
    "max_length": ("at most {max_length} {unit}", lambda value, most: len(value) <= most),
}
"""What sentences call each bound, and whether a value keeps it."""
_BOOLEANS: Mapping[object, bool] = {
    **dict.fromkeys((True, "true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys((False, "false", "f", "no", "n", "off", "0"), False),
}
HABITS: Mapping[str, str] = {
    **dict.fromkeys(("learning_rate", "lr"), "algorithm.lr"),
    **dict.fromkeys(("discount", "gamma", "discount_factor"), "algorithm.gamma"),
    **dict.fromkeys(("gae", "lam", "lambda", "lambda_", "gae_lambda"), "algorithm.gae_lambda"),
    **dict.fromkeys(("clip_param", "clip_range", "clip_eps", "eps_clip", "clip_coef"), "algorithm.clip"),
    **dict.fromkeys(("vf_clip_param", "clip_range_vf"), "algorithm.value_clip"),
    **dict.fromkeys(("torso", "shared_torso", "vf_share_layers", "share_layers"), "algorithm.torso: shared, of ippo"),
    **dict.fromkeys(
        ("value_weight", "vf_coef", "vf_loss_coeff", "value_loss_coef"),
        "algorithm.value_weight, of ippo with torso: shared; critics that are nets of their own need none",
    ),
    "log_std_init": "algorithm.initial_std, the deviation and not its logarithm",
    **dict.fromkeys(("ent_coef", "entropy_coef", "entropy_coeff"), "algorithm.entropy"),
    **dict.fromkeys(("n_epochs", "num_epochs", "num_sgd_iter", "ppo_epoch", "update_epochs"), "algorithm.epochs"),
    **dict.fromkeys(("num_minibatches", "num_mini_batch"), "algorithm.minibatches"),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "grad_norm_clip"), "algorithm.max_grad_norm"),
    **dict.fromkeys(("buffer_size", "replay_size", "memory_size"), "algorithm.replay.capacity"),
    "batch_size": "algorithm.batch, or actors.count · actors.envs · actors.steps of algorithms without a replay",
    "train_batch_size": "actors.count · actors.envs · actors.steps",
    "tau": "algorithm.target_tau",
    **dict.fromkeys(
        ("hidden", "hidden_dim", "hidden_size", "hidden_sizes", "fcnet_hiddens", "net_arch"), "model.hidden"
    ),
    **dict.fromkeys(("fcnet_activation", "activation", "activation_fn"), "model.activation"),
    **dict.fromkeys(
        ("norm_obs", "normalize", "normalize_observations", "observation_filter", "obs_norm", "normalize_input"),
        "model.normalise_observations",
    ),
    **dict.fromkeys(("use_rnn", "rnn"), "model.recurrent: gru"),
    **dict.fromkeys(("use_lstm", "lstm"), "model.recurrent: lstm"),
    **dict.fromkeys(
        ("num_workers", "n_workers", "workers", "num_env_runners", "num_actors", "n_rollout_threads"), "actors.count"
    ),
    **dict.fromkeys(
        ("num_envs", "n_envs", "batch_size_run", "num_envs_per_worker", "num_envs_per_env_runner"), "actors.envs"
    ),
    **dict.fromkeys(
        ("n_steps", "num_steps", "rollout_fragment_length", "rollout_length", "episode_length"), "actors.steps"
    ),
    **dict.fromkeys(
        ("timesteps", "total_timesteps", "num_env_steps", "t_max", "max_steps", "env_steps"), "stop.env_steps"
    ),
    **dict.fromkeys(("rounds", "iterations", "num_iterations", "training_iterations"), "stop.rounds"),
    **dict.fromkeys(
        ("share_policy", "parameter_sharing", "share_params", "shared", "groups"), "sharing.groups: shared"
    ),
    **dict.fromkeys(("evaluation_interval", "eval_freq", "test_interval"), "evaluation.every"),
    **dict.fromkeys(
        ("eval_episodes", "n_eval_episodes", "test_nepisode", "evaluation_duration"), "evaluation.episodes"
    ),
    **dict.fromkeys(("device", "gpu", "cuda", "use_cuda", "num_gpus"), "learner.device"),
    **dict.fromkeys(("env_name", "env_id", "map_name", "environment"), "env.name"),
    **dict.fromkeys(("env_args", "env_config", "env_kwargs"), "env.options"),
}
"""What other libraries call a setting, or where somebody may look for it → where it is."""
Check = TypeVar("Check", bound=Callable[[Any], None])
Mistake = tuple[tuple[str, ...], str]
"""The names that lead to a field, and one sentence."""


class InvalidSettingsError(ValueError):
    """Settings that are not allowed; a line for each mistake."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(mistakes)
        self.mistakes = mistakes

    def __str__(self) -> str:
        return "\n".join(": ".join(filter(None, (".".join(path), sentence))) for path, sentence in self.mistakes)


class _UnfitError(InvalidSettingsError):
    """A value that a field does not take."""

    def __init__(self, value: object, allowed: str) -> None:
        empty = "is empty; give it a value or leave it out"
        super().__init__([((), empty if value is None else f"got {shown(value)}; allowed: {allowed}")])
        self.allowed = allowed


class Bounds(TypedDict, total=False):
    """What is said of a field beside its type and its default."""

    gt: float
    ge: float
    lt: float
    le: float
    min_length: int
    max_length: int
    check: Callable[[Any], None]
    """Raises ValueError, one sentence, for a value that is not allowed."""
    description: str


def unknown_field(name: str, known: Iterable[str], *, listed: bool = True) -> str:
    """The sentence about a field that a section does not have; `listed` as in `unknown_name`."""
    fields, here = list(known), HABITS.get(name)
    if not here or difflib.get_close_matches(name, fields, cutoff=0.9):  # n_steps is n_step where there is such a field
        return unknown_name("field", name, fields, listed=listed)
    return f"unknown field {shown(name)}; here it is {here}"


def Field(default: Any = dataclasses.MISSING, **bounds: Unpack[Bounds]) -> Any:  # noqa: N802  # reads as pydantic's
    """A field of a section: its default, if it has one, and what its values must keep; also inside `Annotated`."""
    return dataclasses.field(default=default, metadata=bounds)


def constraint(method: Check) -> Check:
    """Mark a method of a section that raises ValueError, one sentence, if fields do not fit together.

    Constraints are checked after all fields, those of base classes first.
    """
    vars(method)["is_constraint"] = True
    return method


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """Base of settings: frozen, and a misspelt field is an error. Each subclass is a dataclass.

    Types of fields are bool, int, float, str, Literal, other sections, tuples of one type, and unions of those. Text
    such as "0.5" is a number too. Methods are named as those of pydantic's models, which other sections of a job are.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            if type(value).__module__.startswith("pydantic."):
                raise TypeError(
                    f"{cls.__name__}.{name} is pydantic's, which would not be read: fields are declared with Field, "
                    "and what must fit together with @constraint, both of marless.core.settings"
                )
        dataclasses.dataclass(init=False, frozen=True, kw_only=True)(cls)
        for field in dataclasses.fields(cls):
            if vars(cls).get(field.name, field.default) is not field.default:
                raise TypeError(f"{cls.__name__}.{field.name} has no type; a new default is written with its type")

    def __init__(self, /, **given: Any) -> None:
        section: type = type(self)
        fields, mistakes = _fields(section), list[Mistake]()
        for name, (kind, field) in fields.items():
            try:
                vars(self)[name] = _fitted(given.get(name, field.default), kind, field.metadata)
            except InvalidSettingsError as error:
                mistakes += [((name, *path), sentence) for path, sentence in error.mistakes]
        unknown = [name for name in given if name not in fields]
        # the first of them has the list of all fields, which is long in some sections
        mistakes += [((name,), unknown_field(name, fields, listed=i == 0)) for i, name in enumerate(unknown)]
        if mistakes:
            raise InvalidSettingsError(mistakes)
        for name in _constraints(section):
            _call(getattr(self, name))

    @classmethod
    def model_validate(cls, given: object) -> Self:
        """An instance as it is, or one of these settings; raises InvalidSettingsError."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise _UnfitError(given, KINDS[dict])
        return cls(**{str(name): value for name, value in given.items()})

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:  # Any: as in __init__
        """A copy with other values of some fields; raises InvalidSettingsError."""
        return type(self)(**{**vars(self), **update})

    def model_dump(self) -> dict[str, Any]:  # Any: as in __init__
        """All settings by name, sections within as dictionaries."""
        return dataclasses.asdict(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Lets a pydantic model have fields of this type."""
        from pydantic_core import core_schema

        dumped = core_schema.simple_ser_schema("any")
        return core_schema.no_info_plain_validator_function(cls.model_validate, serialization=dumped)


@cache
def _fields(section: type) -> Mapping[str, tuple[Any, dataclasses.Field[Any]]]:
    """The fields of a section by name: the type, whose annotation may be text, and what is said beside it."""
    kinds = get_type_hints(section, include_extras=True)
    return {each.name: (kinds[each.name], each) for each in dataclasses.fields(section)}


@cache
def _constraints(section: type) -> tuple[str, ...]:
    attributes = (item for each in reversed(section.__mro__) for item in vars(each).items())
    return tuple(dict.fromkeys(name for name, value in attributes if getattr(value, "is_constraint", False)))


def _call(check: Callable[..., None], *values: object) -> None:
    try:
        check(*values)
    except ValueError as error:
        raise InvalidSettingsError([((), str(error))]) from None


def _fitted(given: Any, kind: Any, bounds: Mapping[str, Any]) -> Any:
    """A value as its section holds it; raises InvalidSettingsError if it is not of the type, or beyond a bound."""
    if given is dataclasses.MISSING:
        raise InvalidSettingsError([((), "is missing; it has no default")])
    value = _of_kind(given, kind)
    if value is None:
        return None
    for name, (words, keeps) in BOUNDS.items():
        if name in bounds and not keeps(value, bounds[name]):
            bound = float(bounds[name]) if isinstance(value, float) else bounds[name]
            unit = "characters" if isinstance(value, str) else "of them"
            raise _UnfitError(given, words.format(**{name: bound}, unit=unit))
    if "check" in bounds:
        _call(bounds["check"], value)
    return value


def _of_kind(value: Any, kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated and isinstance(arguments[1], dataclasses.Field):
        return _fitted(value, arguments[0], arguments[1].metadata)
    if origin in (Union, UnionType):
        return _of_union(value, arguments)
    if origin is Literal:
        if not any(value == each and type(value) is type(each) for each in arguments):
            *others, last = map(repr, arguments)
            raise _UnfitError(value, " or ".join(filter(None, (", ".join(others), last))))
        return value
    if origin is tuple and arguments[1:] == (...,):
        return _of_tuple(value, arguments[0])
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind.model_validate(value)
    if kind in (bool, int, float, str):
        return _of_scalar(value, kind)
    raise TypeError(
        f"{kind} is no type of a setting; allowed: bool, int, float, str, Literal, Section, tuple[…, ...], unions of "
        "those, and Annotated[…, Field(…)] with the Field of marless.core.settings"
    )


def _of_union(value: Any, kinds: Sequence[Any]) -> Any:
    """The value as the first of some types that takes it, its own type before others."""
    if value is None and NoneType in kinds:
        return None
    allowed = []
    for kind in sorted((kind for kind in kinds if kind is not NoneType), key=lambda kind: kind is not type(value)):
        try:
            return _of_kind(value, kind)
        except _UnfitError as error:
            allowed.append(error.allowed)
    raise _UnfitError(value, " or ".join(dict.fromkeys(allowed)))


def _of_tuple(value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _UnfitError(value, KINDS[tuple])
    fitted, mistakes = [], list[Mistake]()
    for index, each in enumerate(value):
        try:
            fitted.append(_of_kind(each, kind))
        except InvalidSettingsError as error:
            mistakes += [((str(index), *path), sentence) for path, sentence in error.mistakes]
    if mistakes:
        raise InvalidSettingsError(mistakes)
    return tuple(fitted)


def _of_scalar(value: Any, kind: type[bool | int | float | str]) -> Any:
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool | int | float | str):
        found = _BOOLEANS.get(value.lower() if isinstance(value, str) else value)
        if found is not None:
            return found
    if kind in (int, float) and isinstance(value, Real | str) and not isinstance(value, bool):
        number: Any = None
        with suppress(ValueError, OverflowError):  # of text that is no number, and whole numbers that no float holds
            number = float(value) if kind is float else int(value) if isinstance(value, str) else value
        if isinstance(number, float) and not math.isfinite(number):
            raise _UnfitError(value, FINITE)
        if number is not None and (kind is float or number % 1 == 0):
            return kind(number)
    raise _UnfitError(value, KINDS[kind])


class FunctionSize(Section):
    """vCPUs and memory (MiB) of one function; both are billed while it runs."""

    vcpus: float = Field(1.0, gt=0, le=192)
    memory_mb: int = Field(1024, ge=128, le=1_048_576)


class FunctionsSpec(Section):
    """The sizes of the job's functions (Wei et al. 2025, §5: 1 to 2 vCPUs, at least 1 GB)."""

    actor: FunctionSize = FunctionSize()
    learner: FunctionSize = Field(
        FunctionSize(memory_mb=2048),
        description="of each post-processing, critic and policy function",
    )
    prewarm: bool = Field(True, description="start the next round's actors while learners work")


class CurvatureSpec(Section):
    """Settings of curvature measurement, which runs if a scaling or sharing policy needs it."""

    samples: int = Field(
        128, ge=1, le=65_536, description="samples of the round used per policy, drawn anew each round"
    )
    steps: int = Field(8, ge=2, le=1000, description="Lanczos steps, a Hessian-vector product each")
    probes: int = Field(1, ge=1, le=100, description="random starts; the extreme eigenvalues over all starts count")


class SimilarityConfig(Section):
    """Base of every similarity's config; `name` selects it in `marless.learning.similarity.measures`."""

    name: str
    samples: int = Field(256, ge=8, le=500, description="samples of the round used per agent, drawn anew each time")


@dataclasses.dataclass(frozen=True)
class Measure:
    """Measurements to make during an update, for the decisions on the next round."""

    curvature: CurvatureSpec | None = None
    """If set: per policy, after the update, metrics "lambda_max", "lambda_min" and "curvature", their ratio C."""
    noise: bool = False
    """If true: per policy, metric "noise_scale", the gradient noise scale in samples."""
    gradients: bool = False
    """If true: per policy, before its update, statistics of its gradient, and of how far its agents agree; see
    `marless.learning.algos.training.measuring`. Measured by the PPO family."""
    similarity: SimilarityConfig | None = None
    """If set: distances between all agents of each class, from the round's samples."""
