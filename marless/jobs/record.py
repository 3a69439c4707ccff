"""RoundRecord: everything recorded about a round; a line of `rounds.jsonl`, durable before the next round begins."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, get_args

from marless.core import columns
from marless.core.documents import dataclass_of
from marless.core.group import FunctionKind, LaneRecord
from marless.core.machine import MachineRecord
from marless.learning.data.returns import EpisodeReturns

_OF_MACHINES = tuple(field.name for field in dataclasses.fields(MachineRecord))
_OPTIONAL = ("ready_s", "machine", "pass_cpu_s", "init_cpu_s")
"""What invocations are written without if it is the default."""
INSIDE = frozenset(get_args(FunctionKind))
"""The functions that run inside a learner."""
FEWEST_MACHINES = 3
"""Fewer machines are written as a list of objects."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The returns of greedy policies, and how far training was when these policies were published."""

    rounds: int
    """Number of rounds trained."""
    env_steps: int
    """Env steps sampled for training."""
    returns: EpisodeReturns


@dataclass(frozen=True, kw_only=True)
class InvocationRecord:
    """One execution of a function, the unit of billing. Times are Unix seconds.

    Actors, evaluations and learners are whole executions of a worker. Post-processing, critics, mixers, policies and
    measurements run inside a learner, several of them in one stacked pass: they have the start and end of the pass, and
    `vcpu_s` is their share of its duration. `cpu_s` tells the CPU seconds of either.
    """

    id: str
    function: str
    name: str
    index: int
    """For an actor: its number in the round. For a learner and the functions inside it: the index of its scope, which
    is an agent class, or the whole team for algorithms that learn jointly."""
    attempt: int
    worker: str
    queued_s: float
    start_s: float
    end_s: float
    vcpu_s: float
    """CPU seconds of its process, and of the thread that computed it for the parameter function. For a function inside
    a learner, its share of the duration of its passes, in which a vCPU or a GPU was occupied."""
    memory_bytes: int
    cold: bool
    """True for the first invocation of its worker."""
    init_s: float = 0.0
    """Seconds from the worker's launch until it was ready, if cold."""
    ready_s: float = 0.0
    """Seconds that the worker was connected before this invocation, if cold."""
    machine: str = ""
    """Id of the machine on which it ran; "" if its launcher does not tell."""
    after: tuple[str, ...] = ()
    """For a function inside a learner: the functions of that learner that it depends on, as "<function>/<name>"."""
    during_update: bool = False
    """True for an evaluation that ran during its round's update: of policies that an earlier round published."""
    pass_cpu_s: float = 0.0
    """For a function inside a learner: the CPU seconds of its passes, by the clock of the threads that ran them; on a
    GPU, `vcpu_s`, because it is occupied meanwhile. 0: not measured."""
    init_cpu_s: float = 0.0
    """CPU seconds of the worker's process until it was ready, if cold; 0: not measured."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds that it consumed, during which it waited for no core; 0 if they were not measured."""
        return self.pass_cpu_s if self.function in INSIDE else self.vcpu_s

    @property
    def node(self) -> str:
        """The form used in `after`: "<function>/<name>"."""
        return f"{self.function}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class PhaseSeconds:
    """Seconds of a round by phase, as measured by the coordinator."""

    rollout: float
    """Seconds that the round waited for its actors: all that they took, unless they began beside an earlier update."""
    update: float
    evaluation: float
    """Seconds that the round took after its update because of evaluations."""


@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """A group of agents that shared one policy, and the version published for it in this round."""

    policy: str
    agents: tuple[str, ...]
    version: int
    source: str = ""
    """The policy whose state the update started from, if that was another one because the groups changed."""


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Pairwise distances between the behaviour of the agents of one class, measured in this round."""

    agents: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """[N, N]: symmetric, 0 on the diagonal; the unit is that of the job's similarity measure."""


@dataclass(frozen=True, kw_only=True)
class GradientRecord:
    """A gradient that became part of a version."""

    learner: int
    """Its number; the learner computed one gradient."""
    rollouts: tuple[int, ...]
    """Those that it was computed from."""
    env_steps: int
    """Of those rollouts."""
    staleness: int
    """Versions published between the one that it was computed from and this one; 0: none."""
    weight: float
    waited_s: float
    """Seconds from its arrival until it was applied; 0 if a coordinator was restarted meanwhile."""


@dataclass(frozen=True, kw_only=True)
class AggregationRecord:
    """How a version came about under schedule `stellaris`; counts of rollouts and gradients are of the job so far."""

    arrivals: str
    """What has happened since the version before, in order: see `marless.jobs.schedules.events`."""
    gradients: tuple[GradientRecord, ...]
    """In order of arrival."""
    because: str
    """Why they were aggregated: see `marless.learning.aggregation.queue.Because`."""
    bound: float | None
    """The bound on their mean staleness; None if there was none."""
    sampling: int
    """Rollouts under way, with those that this version starts."""
    waiting: int
    """Rollouts that wait for a learner."""
    learning: int
    """Learners under way."""
    dropped: int
    """Rollouts that were too old to be learned from."""
    lost: int
    """Rollouts and gradients that failed."""
    refused: int
    """Gradients that were not taken because they were too stale."""

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of its gradients."""
        return sum(each.staleness for each in self.gradients) / max(len(self.gradients), 1)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A scaling or sharing policy's decision for one round, with its inputs."""

    kind: Literal["scaling", "sharing"]
    rule: str
    """Name of the policy in the registry, e.g. "marless"."""
    outcome: str
    """Short form: "38 actors", or the groups as "agent_0+agent_2 agent_1"."""
    reason: str
    """The reason in one sentence, with the relevant numbers."""
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # Any: what JSON can hold
    """The inputs of the decision, and what the policy needs from it in later rounds: enough to decide again."""


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """Everything recorded about one round. Rounds are numbered from 0."""

    job: str
    round: int
    env_steps: int
    """Env steps sampled for training up to and including this round (one step: all agents act once in one copy)."""
    actors: int
    groups: tuple[GroupRecord, ...]
    versions: Mapping[str, int]
    """Newest version of every policy and joint critic after this round."""
    started_s: float
    ended_s: float
    phases: PhaseSeconds
    returns: EpisodeReturns | None
    """Returns of the exploring policies during sampling; None if no episode ended in this round."""
    evaluation: EpisodeReturns | None
    """Returns of the greedy policies that this round published, if it evaluated them itself; see `evaluations`."""
    metrics: Mapping[str, Mapping[str, float]]
    """Per policy and joint critic: losses, KL, entropy, explained variance, gradient norms; curvature and noise if the
    scaling or sharing policy needs them (see `marless.learning.algos.learner.UpdateOutput`).
    """
    invocations: tuple[InvocationRecord, ...]
    decisions: tuple[Decision, ...]
    """The decisions on this round's actors and groups."""
    distances: tuple[Distances, ...] = ()
    """Per agent class, if the sharing policy needs them."""
    lanes: tuple[LaneRecord, ...] = ()
    """All lanes that have begun, as this round left them, if episodes are carried; also those that rest because the
    round had fewer actors."""
    machines: tuple[MachineRecord, ...] = ()
    """The machines of this job's workers, of which something changed since the record before."""
    earlier_evaluation: Evaluation | None = None
    """Returns of the greedy policies that an earlier round published, if they were evaluated during the update of this
    round."""
    computed_by: tuple[str, ...] = ()
    """What decides the bits of the weights: device, torch, NumPy, and on a CPU its kind and kernels, of each learner.
    Only where it is not as in the record before; under schedule `stellaris`, of all learners so far."""
    broken_episodes: int = 0
    """Episodes of this round's sampling that a fault of the environment has ended, such as a simulation that diverged.
    They are in no return; what they played until then is trained on."""
    ahead: int = 0
    """Number of actors of the next round that began beside this round's update; 0 under schedule `synchronous`."""
    evaluation_given_up: bool = False
    """True if it evaluated its own policies and no episode ended within `evaluation.limit_s`."""
    aggregation: AggregationRecord | None = None
    """Under schedule `stellaris`, of which a round is a version; else None."""
    idle_s: float | None = None
    """Seconds between the end of the round before and the start of this one, by a monotonic clock. None for the first
    round, and after an interruption, when no coordinator ran the job all the way between the two rounds."""

    @property
    def took_s(self) -> float:
        """Seconds from the start to the end of the round; never negative."""
        return max(self.ended_s - self.started_s, 0.0)

    @property
    def spent_s(self) -> float:
        """Seconds of training time for this round: from the end of the round before to the end of this one, without
        interruptions. The sum over all rounds is the training time that `stop.wall_s` limits.
        """
        return max(self.idle_s or 0.0, 0.0) + self.took_s

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations that this round ran, those of older policies first."""
        earlier = (self.earlier_evaluation,) if self.earlier_evaluation else ()
        if self.evaluation is None:
            return earlier
        return *earlier, Evaluation(rounds=self.round + 1, env_steps=self.env_steps, returns=self.evaluation)

    @property
    def newest_evaluation(self) -> EpisodeReturns | None:
        """The returns of the newest policies that this round evaluated; None if it evaluated none."""
        return self.evaluations[-1].returns if self.evaluations else None

    def to_json(self) -> str:
        """One line of `rounds.jsonl`. Evaluations also have `return` and `win_rate`, for programs that read it.

        Many invocations or lanes are written as columns: see `marless.core.columns`.
        """
        kind = attrgetter("function", "name")
        data: dict[str, Any] = vars(self) | {  # Any: JSON
            "invocations": columns.encoded(self.invocations, kind, optional=_OPTIONAL),
            "lanes": columns.encoded(self.lanes),
            "machines": columns.encoded(self.machines, fewest=FEWEST_MACHINES, optional=_OF_MACHINES),
        }
        if self.aggregation is None:
            del data["aggregation"]
        if not self.computed_by:
            del data["computed_by"]
        if not self.evaluation_given_up:
            del data["evaluation_given_up"]
        if not self.broken_episodes:
            del data["broken_episodes"]
        if self.evaluation:
            data["evaluation"] = _with_headline(self.evaluation)
        if self.earlier_evaluation:
            data["earlier_evaluation"] = vars(self.earlier_evaluation) | {
                "returns": _with_headline(self.earlier_evaluation.returns)
            }
        return json.dumps(data, separators=(",", ":"), default=vars)  # `asdict` takes five times as long


def _with_headline(returns: EpisodeReturns) -> dict[str, object]:
    return vars(returns) | {"return": returns.mean, "win_rate": returns.win_rate}


def from_json(line: str) -> RoundRecord:
    """Read a round record from its line of `rounds.jsonl`, as `RoundRecord.to_json` writes it; raises ValueError."""
    try:
        data = json.loads(line)
        if "distances" not in data:  # each line has them, although a record that is made need not name any
            raise KeyError("distances")
        data |= {name: columns.decoded(data[name]) for name in ("invocations", "lanes", "machines")}
        for held in (data["evaluation"], (data["earlier_evaluation"] or {}).get("returns")):
            if held:
                del held["return"], held["win_rate"]  # of others, for programs that read the file
        # Returns are as large as an environment makes them, and enter no cost.
        record = dataclass_of(RoundRecord, data, unlimited=(EpisodeReturns,))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no round record: {error}") from None
    for found in (record.returns, *(each.returns for each in record.evaluations)):
        if found and not (found.episodes >= 1 and 0 <= (found.wins or 0) <= found.episodes):
            raise ValueError(f"no round record: {found.wins} wins of {found.episodes} episodes")
    return record


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a job, as `marless train -o json` prints it."""

    job: str
    state: str
    reason: str
    rounds: int
    env_steps: int
    greedy: EpisodeReturns | None
    random: EpisodeReturns | None
    wall_s: float
    """Training time in seconds, as `stop.wall_s` counts it: see `RoundRecord.spent_s`."""
    elapsed_s: float
    """Seconds since the job was accepted, including queueing, start-up and interruptions."""
    env_steps_per_s: float
    """Env steps per second of training time."""
    run_dir: str
    cost_usd: float | None = None
    """Cost of all rounds in US dollars, by `accounting`; None if unknown."""
    accounting: str = ""
    """`bill.accounting`: billed, paper or serverful."""
    marless_version: str = ""
    """The version of marless that ran the job last."""

    def to_json(self) -> str:
        """One JSON object. `return` and `random_return` are the mean returns per agent of the greedy policies and of
        the random baseline, with their standard errors and numbers of episodes; `win_rate` and `random_win_rate` are
        fractions of episodes, null if the environment does not report wins.
        """
        data = dataclasses.asdict(self)
        greedy, random = data.pop("greedy"), data.pop("random")
        headline = {
            "return": greedy and greedy["mean"],
            "random_return": random and random["mean"],
            "return_standard_error": greedy and greedy["standard_error"],
            "random_return_standard_error": random and random["standard_error"],
            "return_episodes": greedy and greedy["episodes"],
            "random_return_episodes": random and random["episodes"],
            "return_per_agent": greedy and greedy["per_agent"],
            "random_return_per_agent": random and random["per_agent"],
            "win_rate": self.greedy and self.greedy.win_rate,
            "random_win_rate": self.random and self.random.win_rate,
        }
        return json.dumps(data | headline)
