"""The protocol of metrics sinks, and their registry. No vendor's package is imported with it or a sink's config.

A sink shows the rounds of one job as curves over env steps. It runs in a thread of its own, so it may block. Its
exceptions are logged, and a new sink is opened a little later. The caller tracks which rounds a sink has written: after
a crash the newest may be written again, and after a resume from a checkpoint, rounds that ran again.

Sinks are found by name: marless's own, and those of other packages, as entry points of the group "marless.sinks".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from marless.core.errors import SpecError
from marless.core.registry import Registry
from marless.core.validation import Strict
from marless.jobs.record import AggregationRecord, RoundRecord
from marless.learning.data.returns import EpisodeReturns

Setting = bool | int | float | str


class SinkConfig(Strict):
    """Base of every sink's config; `name` selects the sink in the registry. No secrets here: specs are stored."""

    name: str


@dataclass(frozen=True, kw_only=True)
class SinkJob:
    """The job whose rounds a sink will receive."""

    id: str
    folder: Path
    """The run folder; files that a sink keeps there are named after the sink."""
    spec_yaml: str
    """The resolved spec as YAML."""
    settings: Mapping[str, Setting]
    """The resolved spec as flat keys, such as "algorithm.lr"."""
    last: RoundRecord | None
    """The newest valid round that this sink has written; the next round follows it. None: a new curve."""


class Sink(Protocol):
    """Writes one job's rounds. Called in the order open, write …, close; each method may raise any exception."""

    def open(self, job: SinkJob) -> None:
        """Begin a curve, or continue that of an earlier process; its points after `job.last` must be removed."""

    def write(self, record: RoundRecord, scalars: Mapping[str, float]) -> None:
        """Write one round; once this returns, the round must survive a crash of this process.

        `scalars` (see the function of this name) belong to env step `record.env_steps` and time `record.ended_s`.
        """

    def close(self, state: str) -> None:
        """Finish. `state` is SUCCEEDED, FAILED or CANCELLED, or RUNNING if another process continues the job."""


@dataclass(frozen=True, kw_only=True)
class SinkKind:
    """A kind of sink, as entered in the registry."""

    config_type: type[SinkConfig]
    make: Callable[[Any], Sink]  # Any: takes an instance of `config_type`
    package: str = ""
    """Top-level module that must be importable by the coordinator; "": none."""
    install: str = ""
    """The requirement to install for it, in pip's notation."""
    check: Callable[[Any], None] = lambda _: None  # Any: as above
    """Called by the coordinator before the job starts; raises SpecError if the sink cannot work there."""


SINKS: Registry[SinkKind] = Registry(
    "sink",
    "marless.sinks",
    "SINK",
    {name: f"marless.jobs.sinks.{name}" for name in ("tensorboard", "wandb", "mlflow")},
)


def check_sinks(*configs: SinkConfig) -> None:
    """Raise SpecError, saying what to do, if one of a job's sinks cannot work in this process."""
    for config in configs:
        kind = SINKS.find(config.name)
        if kind.package and find_spec(kind.package) is None:
            raise SpecError(
                f"sinks: {config.name} needs the package {kind.package!r} where the coordinator runs: "
                f"pip install '{kind.install}'"
            )
        kind.check(config)


def make_sink(config: SinkConfig) -> Sink:
    """Create a sink for one job."""
    return SINKS.find(config.name).make(config)


def scalars(record: RoundRecord, before: RoundRecord | None, random: EpisodeReturns | None) -> dict[str, float]:
    """All scalars of a round, the same for every sink; `before` is the previous round, `random` the random baseline.

    The part of a name before the first "/" is its group.

    returns/{exploring,greedy,random}         undiscounted episode return, per agent, averaged over episodes
    wins/{exploring,greedy,random}            fraction of episodes won, if the environment reports wins
    agents/<agent>/{exploring,greedy,random}  undiscounted episode return of one agent, averaged over episodes
    policies/<policy>/<metric>                losses, KL, entropy, gradient norms of a policy or joint critic
    round/{number,actors,learners,episodes}   the round's number, from 1 on; numbers of actors, learners and episodes
    speed/env_steps_per_s                     env steps sampled in the round ÷ its wall-clock seconds
    seconds/{round,rollout,update,evaluation} wall-clock seconds of the round and its phases
    functions/<function>/{count,vcpu_s}       invocations of a function, and their vCPU seconds
    versions/{gradients,staleness,stalest,weight,waited_s,sampling,waiting,learning,dropped,lost}
                                              under schedule stellaris: gradients of the version; mean and greatest
                                              staleness; mean weight; mean seconds of waiting; rollouts under way,
                                              rollouts that wait, learners under way; so far: rollouts too old, failures
    functions/{vcpu_s,cold}                   for all workers: vCPU seconds, and the number of cold starts
    """
    steps = record.env_steps - (before.env_steps if before else 0)
    round_s = record.took_s
    numbers: dict[str, float] = {
        "round/number": record.round + 1,
        "round/actors": record.actors,
        "round/learners": len(record.groups),
        "round/episodes": record.returns.episodes if record.returns else 0,
        "seconds/round": round_s,
        "seconds/rollout": record.phases.rollout,
        "seconds/update": record.phases.update,
        "seconds/evaluation": record.phases.evaluation,
    }
    if round_s > 0:
        numbers["speed/env_steps_per_s"] = steps / round_s
    for kind, returns in (("exploring", record.returns), ("greedy", record.evaluation), ("random", random)):
        if returns:
            numbers |= {f"agents/{agent}/{kind}": value for agent, value in returns.per_agent.items()}
            numbers |= {} if returns.win_rate is None else {f"wins/{kind}": returns.win_rate}
            numbers[f"returns/{kind}"] = returns.mean
    for policy, metrics in record.metrics.items():
        numbers |= {f"policies/{policy}/{name}": value for name, value in metrics.items()}
    if record.aggregation:
        numbers |= _of_version(record.aggregation)
    return numbers | _functions(record)


def _of_version(aggregation: AggregationRecord) -> dict[str, float]:
    gradients, count = aggregation.gradients, max(len(aggregation.gradients), 1)
    return {
        "versions/gradients": len(gradients),
        "versions/staleness": aggregation.mean_staleness,
        "versions/stalest": max((each.staleness for each in gradients), default=0),
        "versions/weight": sum(each.weight for each in gradients) / count,
        "versions/waited_s": sum(each.waited_s for each in gradients) / count,
        "versions/sampling": aggregation.sampling,
        "versions/waiting": aggregation.waiting,
        "versions/learning": aggregation.learning,
        "versions/dropped": aggregation.dropped,
        "versions/lost": aggregation.lost,
    }


def _functions(record: RoundRecord) -> dict[str, float]:
    numbers: dict[str, float] = {"functions/vcpu_s": 0.0, "functions/cold": 0}
    for invocation in record.invocations:
        count, vcpu_s = (f"functions/{invocation.function}/{what}" for what in ("count", "vcpu_s"))
        numbers[count] = numbers.get(count, 0) + 1
        numbers[vcpu_s] = numbers.get(vcpu_s, 0.0) + invocation.vcpu_s
        if invocation.worker:  # otherwise it is part of a learner's invocation, which is counted itself
            numbers["functions/vcpu_s"] += invocation.vcpu_s
            numbers["functions/cold"] += invocation.cold
    return numbers


_LONGEST_TEXT = 1000
"""Most characters of a text setting; a trained scheduler, for example, has some 70,000."""


def settings(spec: Mapping[str, object]) -> dict[str, Setting]:
    """A resolved spec as flat settings, such as "algorithm.lr"; lists become text, None values are left out."""
    flat: dict[str, Setting] = {}
    for name, value in spec.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in settings(value).items()}
        elif isinstance(value, bool | int | float):
            flat[name] = value
        elif value is not None:
            text = str(value)
            flat[name] = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    return flat
