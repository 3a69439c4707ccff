"""Asynchronous learning on modelled slots: which rule of aggregation comes to a return first, with how stale gradients.

    python -m bench.asynchronous --json asynchronous_even.json
    python -m bench.asynchronous --actors 64 --learners 16 --json asynchronous_64.json

Independent PPO in `simple_spread`, three agents. Rollouts, gradients and their aggregation are really computed, in this
process and in the order in which they begin on a virtual clock (`marless.simulation.asynchronous`); how long they take
there is drawn from durations that this program measures first. So the seconds are those of as many slots as asked for,
each as fast as a core of this machine that does nothing else. Every rule has the same settings, one gradient of each
rollout, and as many learners; a control has a greater learning rate. `sync` waits for all rollouts before each version.
`uneven` machines have a quarter of the actors at half speed, and stragglers: one function in twenty takes five times as
long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import harness
from bench.harness import Row, spread
from bench.workers import on_one_thread
from marless.aggregation.applying import applied
from marless.algos import registry as algorithms
from marless.algos.algorithm import scopes
from marless.algos.learner import LearnerContext, RoundInput
from marless.algos.ppo.ippo import IPPOConfig
from marless.core.state import Arrays, PolicyState
from marless.data.rollout import play, rollout
from marless.data.trajectory import Trajectory
from marless.envs import registry
from marless.nets.acting import ActingPolicies
from marless.nets.model import ModelSpec
from marless.schedules.stellaris import Command, Learn, Publish, Sample, Stellaris, StellarisConfig, learner_of
from marless.sharing.groups import initial_groups
from marless.simulation.asynchronous import Course, Durations, Machines, simulate

ENVS, STEPS, EVALUATED = 20, 25, 50
"""Environment copies and steps of a rollout: 500 env steps; gradients between two evaluations."""
EPISODES = 40
MEASURED = 40
MACHINES = {"even": Machines(), "uneven": Machines(slow=0.25, straggling=0.05)}
RULES: Mapping[str, Mapping[str, object]] = {
    "sync": {"barrier": True, "aggregation": "sync"},
    "sync at 4 times the rate": {"barrier": True, "aggregation": "sync"},
    "stellaris": {"aggregation": "stellaris"},
    "stellaris without bound": {"aggregation": {"rule": "stellaris", "decay": 1.0, "first_round": 10_000}},
    "stellaris without weights": {"aggregation": {"rule": "stellaris", "weights": "equal"}},
    "softsync of 4": {"aggregation": "softsync"},
    "ssp": {"aggregation": "ssp"},
    "async": {"aggregation": "async"},
}
FASTER: Mapping[str, float] = {"sync at 4 times the rate": 4.0}
"""By rule, the factor of its learning rate: a mean of many gradients may be followed further than a single one."""


class Spread:
    """The work of a job: versions, trajectories and gradients, and the returns of greedy policies on the way."""

    def __init__(self, seed: int, lr: float) -> None:
        self._seed = seed
        self._env = registry.make("mpe/simple_spread", {"agents": 3}, ENVS)
        self._games = registry.make("mpe/simple_spread", {"agents": 3}, EPISODES)
        self._config = IPPOConfig.model_validate({"lr": lr, "gamma": 0.95})
        self._groups = initial_groups("independent", self._env.spaces)
        entry = algorithms.algorithm("ippo")
        [scope] = scopes(entry, self._config, self._env.spaces)
        model = ModelSpec.model_validate({})
        self._learner = entry.learner(self._config, LearnerContext(model, self._env.spaces, scope, "cpu"))
        self._states: dict[str, PolicyState] = {}
        for name in self._learner.names(self._groups):
            self._take(name, self._learner.initial(name, seed))
        self._trajectories: dict[int, Trajectory] = {}
        self._gradients: dict[int, Mapping[str, Arrays]] = {}
        self._learned = 0
        self.env_steps = 0
        """Env steps of all gradients that were applied."""
        self.returns: list[float] = []
        """Greedy return per agent after each EVALUATED gradients."""
        self.evaluated_at: list[int] = []
        """Versions at that time."""
        self._versions = 0

    def do(self, command: Command) -> None:
        """See `Work`."""
        match command:
            case Sample(number, _):
                acting = self._acting()
                seed = 1_000_000 * self._seed + number
                self._trajectories[number], _ = rollout(self._env, acting, steps=STEPS, seed=seed, with_state=False)
            case Learn(learner, rollouts):
                taken = [self._trajectories.pop(number) for number in rollouts]
                inputs = RoundInput(learner, self.env_steps, self._seed, self._groups, taken)
                self._gradients[learner] = self._learner.gradients(inputs).gradients
            case Publish(aggregation):
                numbers = [learner_of(each.gradient) for each in aggregation.gradients]
                self._apply([self._gradients.pop(number) for number in numbers], aggregation.weights)

    def _apply(self, gradients: Sequence[Mapping[str, Arrays]], weights: Sequence[float]) -> None:
        steps = self._config.net_steps(self.env_steps)
        for name, state in list(self._states.items()):
            self._take(name, applied(state, [each[name] for each in gradients], weights, steps))
        self._versions += 1
        before, self._learned = self._learned, self._learned + len(gradients)
        self.env_steps += len(gradients) * ENVS * STEPS
        if self._learned // EVALUATED > before // EVALUATED:
            stats = play(self._games, self._acting(), episodes=EPISODES, seed=7)
            self.returns.append(sum(stats.return_sum.values()) / (EPISODES * len(stats.return_sum)))
            self.evaluated_at.append(self._versions)

    def _take(self, name: str, state: PolicyState) -> None:
        self._states[name] = state
        self._learner.load(name, state)

    def _acting(self) -> list[ActingPolicies]:
        (agents,) = self._env.spaces.classes
        return [ActingPolicies.from_states(agents, [self._states[agent] for agent in agents.agents])]


@dataclass(frozen=True)
class Run:
    """A rule with one seed."""

    course: Course
    work: Spread

    def reached_s(self, target: float) -> float | None:
        """Seconds until the mean of three evaluations in a row is at least `target`; None if it never is."""
        returns = self.work.returns
        for number in range(2, len(returns)):
            if sum(returns[number - 2 : number + 1]) / 3 >= target:
                return self.course.published_s[self.work.evaluated_at[number] - 1]
        return None


def measured(lr: float) -> Durations:
    """CPU seconds of rollouts, gradients and aggregations in this process."""
    work = Spread(0, lr)
    found: dict[str, list[float]] = {"sample": [], "learn": [], "publish": []}
    rule = Stellaris(StellarisConfig.model_validate({"aggregation": "async", "learners": 1}), 1)

    class Clocked:
        def do(self, command: Command) -> None:
            before_s = time.process_time()
            work.do(command)
            found[type(command).__name__.lower()].append(time.process_time() - before_s)

    simulate(rule, Durations(sample_s=[1.0], learn_s=[1.0]), Machines(), gradients=MEASURED, seed=0, work=Clocked())
    later = {name: each[MEASURED // 4 :] for name, each in found.items()}
    return Durations(
        sample_s=later["sample"], learn_s=later["learn"], publish_s=sorted(later["publish"])[len(later["publish"]) // 2]
    )


def run(
    name: str, seed: int, *, actors: int, learners: int, machines: str, durations: Durations, gradients: int, lr: float
) -> Run:
    """Train once."""
    config = StellarisConfig.model_validate({"learners": learners, **RULES[name]})
    work = Spread(seed, FASTER.get(name, 1.0) * lr)
    course = simulate(
        Stellaris(config, actors), durations, MACHINES[machines], gradients=gradients, seed=seed, work=work
    )
    return Run(course, work)


def row(name: str, runs: Sequence[Run], reference: Sequence[Run], target: float) -> Row:
    """A line of the table."""
    times = [each.reached_s(target) for each in runs]
    ratios = [
        theirs / ours
        for ours, theirs in zip(times, (each.reached_s(target) for each in reference), strict=True)
        if ours and theirs
    ]
    staleness = [sum(each.course.staleness) / len(each.course.staleness) for each in runs]
    return {
        "rule": name,
        f"seconds to {target:g}": spread([each for each in times if each]).cell(2) if any(times) else "never",
        "seeds there": f"{sum(each is not None for each in times)} of {len(times)}",
        "sooner than sync": spread(ratios).cell(2) if ratios else "",
        "last return": spread([sum(each.work.returns[-3:]) / 3 for each in runs]).cell(1),
        "staleness": spread(staleness).cell(2),
        "versions": round(sum(len(each.course.aggregations) for each in runs) / len(runs)),
        "actors busy": spread([each.course.actors_busy for each in runs]).cell(2),
        "learners busy": spread([each.course.learners_busy for each in runs]).cell(2),
        "longest queue": max(each.course.longest_queue for each in runs),
        "dropped": sum(each.course.progress.dropped for each in runs),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--actors", type=int, default=16, help="slots of actors")
    parser.add_argument("--learners", type=int, default=8, help="slots of learners")
    parser.add_argument("--machines", choices=MACHINES, default="even")
    parser.add_argument("--gradients", type=int, default=1500, help="gradients of a run")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--target", type=float, default=-21.0, help="greedy return per agent")
    parser.add_argument("--rules", default=",".join(RULES), help="those to run, by comma; the first is the reference")
    args = parser.parse_args()
    if unknown := [name for name in args.rules.split(",") if name not in RULES]:
        parser.error(f"--rules: there is no {', '.join(unknown)}; known: {', '.join(RULES)}")
    on_one_thread()
    about, durations = harness.machine(), measured(args.lr)
    found: dict[str, list[Run]] = {}
    for name in args.rules.split(","):
        found[name] = [
            run(
                name,
                seed,
                actors=args.actors,
                learners=args.learners,
                machines=args.machines,
                durations=durations,
                gradients=args.gradients,
                lr=args.lr,
            )
            for seed in range(args.runs)
        ]
        harness.say(str(row(name, found[name], found[args.rules.split(",")[0]], args.target)))
    reference = next(iter(found.values()))
    rows = [row(name, runs, reference, args.target) for name, runs in found.items()]
    harness.report(f"asynchronous_{args.machines}", about, rows, {}, args.json)


if __name__ == "__main__":
    main()
