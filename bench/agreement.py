"""Whether the gradients of agents tell if they should share a policy, on the tasks of `bench.frontiers`.

    python -m bench.agreement --runs 3 --json agreement.json

Each job trains twice in this process with equal seeds: with one policy for all agents, whose gradients are measured in
every round (`marless.learning.algos.training.measuring`), and with a policy for each. "Own" is the squared length of an
agent's own gradient, "common" the product of two agents' gradients, means over the rounds of a third of the training ±
standard errors. Both are unbiased, so noise may make them negative. If agents agreed wholly, the two would be equal.
Returns are those of training episodes in the last tenth of the rounds, mean (least to largest) of the seeds; "apart is
ahead from" is the part of the training after which policies apart earn more to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import torch

from bench import harness
from bench.frontiers import TASKS, Task
from bench.harness import OWN_ENVIRONMENTS, ROOT, Row
from marless.core.group import Group
from marless.core.settings import Measure
from marless.jobs import spec
from marless.jobs.job import PreparedJob, prepare
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput
from marless.learning.data.returns import returns_of
from marless.learning.data.rollout import Lane
from marless.learning.envs import registry
from marless.learning.nets.acting import ActingPolicies

ACTORS = {"spread6": 4, "battle8m": 2, "mappo": 4, "growing": 4}
"""The tasks, and the number of actors of the best static setting of each."""
PARTS = ("first", "second", "last")
WINDOWS = 20


@dataclass(frozen=True)
class Trained:
    """What a job's rounds have shown, in their order."""

    returns: Sequence[float]
    """Mean returns of the training episodes that ended in a round; rounds without an end are left out."""
    own: Sequence[float]
    common: Sequence[float]

    @property
    def late(self) -> float:
        """The mean return in the last tenth of the rounds."""
        return fmean(self.returns[-max(len(self.returns) // 10, 1) :])


def trained(job: PreparedJob, seed: int) -> Trained:
    """Train a job in this process; gradients are measured where its policies are shared."""
    actors, algorithm = job.spec.actors, job.spec.algorithm
    entry, groups = algorithms.algorithm(algorithm.name), job.sharing.decide(()).groups
    measure = Measure(gradients=any(len(group.agents) > 1 for group in groups))
    learners = _learners(job, groups, seed)
    acts_by = {agent: (learner, group.policy) for learner, own in learners for group in own for agent in group.agents}
    lane = Lane(registry.make(job.spec.env.name, job.spec.env.arguments, actors.count * actors.envs))
    lane.begin(seed)
    returns, own, common = list[float](), list[float](), list[float]()
    a_round = actors.count * actors.envs * actors.steps
    for number in range(int(job.spec.stop.env_steps or 0) // a_round):
        policies = [
            ActingPolicies.from_states(each, [acts_by[agent][0].state(acts_by[agent][1]) for agent in each.agents])
            for each in job.spaces.classes
        ]
        sampled, sums = lane.roll(
            policies, steps=actors.steps, seed=10_000 * seed + number, with_state=entry.needs_state(algorithm), index=0
        )
        if found := returns_of([sums]):
            returns.append(found.mean)
        for learner, mine in learners:
            inputs = RoundInput(number, number * a_round, seed, mine, [sampled], measure=measure)
            for metrics in learner.update(inputs).metrics.values():
                if "gradient_own" in metrics:
                    own.append(metrics["gradient_own"])
                    common.append(metrics["gradient_common"])
    return Trained(returns, own, common)


def _learners(job: PreparedJob, groups: tuple[Group, ...], seed: int) -> list[tuple[Learner, tuple[Group, ...]]]:
    """A learner for each scope of the algorithm, with first weights, and its groups."""
    entry, found = algorithms.algorithm(job.spec.algorithm.name), []
    for scope in scopes(entry, job.spec.algorithm, job.spaces):
        members = {agent for each in scope.agent_classes(job.spaces) for agent in each.agents}
        mine = tuple(group for group in groups if members.issuperset(group.agents))
        context = LearnerContext(job.spec.model, job.spaces, scope, "cpu", carried=True)
        learner = entry.learner(job.spec.algorithm, context)
        for name in learner.names(mine):
            learner.load(name, learner.initial(name, seed))
        found.append((learner, mine))
    return found


def job_of(task: Task, sharing: str) -> PreparedJob:
    """The task's job with its best number of actors; shared policies know whom they act for."""
    settings = ("stop.rounds=null", f"stop.env_steps={task.env_steps}", f"sharing.groups={sharing}")
    return prepare(spec.load(ROOT / task.job, [*task.settings, f"actors.count={ACTORS[task.name]}", *settings]))


def row(task: str, shared: Sequence[Trained], apart: Sequence[Trained]) -> Row:
    """One line of the table."""
    found: Row = {"task": task}
    for part, name in enumerate(PARTS):
        for what in ("own", "common"):
            numbers = [value for each in shared for value in third(getattr(each, what), part)]
            found[f"{what}, {name} third"] = f"{1e4 * fmean(numbers):.1f} ± {1e4 * error(numbers):.1f}"
    for name, runs in (("shared", shared), ("apart", apart)):
        late = [each.late for each in runs]
        found[f"return, {name}"] = f"{fmean(late):.4g} ({min(late):.4g} to {max(late):.4g})"
    return found | {"apart is ahead from": ahead(shared, apart)}


def ahead(shared: Sequence[Trained], apart: Sequence[Trained]) -> str:
    """The part of the training after which policies apart earn more to its end; "never" if they do not."""
    means = [[fmean(part(each.returns, k) for each in runs) for k in range(WINDOWS)] for runs in (shared, apart)]
    behind = [k for k, (one, other) in enumerate(zip(*means, strict=True)) if other <= one]
    first = behind[-1] + 1 if behind else 0
    return "never" if first == WINDOWS else f"{first / WINDOWS:.0%}"


def part(numbers: Sequence[float], k: int) -> float:
    """The mean of one of the windows."""
    return fmean(numbers[len(numbers) * k // WINDOWS : len(numbers) * (k + 1) // WINDOWS])


def third(numbers: Sequence[float], part: int) -> Sequence[float]:
    """The first, second or last third."""
    return numbers[len(numbers) * part // len(PARTS) : len(numbers) * (part + 1) // len(PARTS)]


def error(numbers: Sequence[float]) -> float:
    """The standard error of the mean."""
    return stdev(numbers) / sqrt(len(numbers))


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--tasks", default=",".join(ACTORS), help="some of the tasks, by name")
    args = parser.parse_args()
    chosen = args.tasks.split(",")
    if unknown := set(chosen) - set(ACTORS):
        parser.error(f"unknown task {min(unknown)!r}; known: {', '.join(ACTORS)}")
    sys.path.insert(0, str(OWN_ENVIRONMENTS))
    about = harness.machine()
    torch.set_num_threads(1)
    rows = []
    for task in (each for each in TASKS if each.name in chosen):
        runs: dict[str, list[Trained]] = {"shared": [], "independent": []}
        for sharing, of in runs.items():
            of += [trained(job_of(task, sharing), seed) for seed in range(args.runs)]
            harness.say(f"{task.name}, {sharing}: {', '.join(f'{each.late:.4g}' for each in of)}")
        rows.append(row(task.name, runs["shared"], runs["independent"]))
    harness.report("agreement", about, rows, {"unit of gradients": "1e-4"}, args.json)


if __name__ == "__main__":
    main()
