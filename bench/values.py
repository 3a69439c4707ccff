"""Compares how values and rewards are scaled, at equal settings and equal samples.

`python -m bench.values --json values.json`: independent PPO on the task of `bench.task`, in this process, by the plain
script and by marless's learner with its settings of `value_normalisation`, `popart` and `value_decay`. The result is
the greedy return per agent after some numbers of env steps; it does not depend on the speed of the machine.

`--at own` takes marless's settings for particle games (`bench.task.OWN`), `--at defaults` those of the algorithm; the
plain script, which has the task's, is left out there.

`--rewards` compares IQL on game/cartpole with `reward_normalisation` and without it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from bench import harness
from bench.harness import Row
from bench.plain_ppo import COPIES, PlainPPO, make_env
from bench.systems import Request, settings
from bench.task import OWN, TASK
from marless.core.group import Group
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.data.rollout import play, rollout
from marless.learning.envs import registry
from marless.learning.envs.base import BatchedEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec

VARIANTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "marless, popart: true, value_decay: 0.9": {"popart": True, "value_decay": 0.9},
        "marless, popart: false, value_decay: 0.9": {"popart": False, "value_decay": 0.9},
        "marless, popart: false, value_decay: 0 (default)": {"popart": False, "value_decay": 0.0},
        "marless, value_normalisation: false": {"value_normalisation": False},
    }
)
PLAIN = "plain script"
AT = ("task", "own", "defaults")
EPISODES = 300
"""Greedy episodes of an evaluation."""


def plain(seed: int, rounds: Sequence[int]) -> list[float]:
    """The returns of the plain script after these numbers of rounds."""
    script, found = PlainPPO(seed), []
    for number in range(1, max(rounds) + 1):
        script.iterate()
        if number in rounds:
            parts = range(EPISODES // TASK.evaluation_episodes)
            found.append(statistics.mean(script.greedy_return(1000 + part) for part in parts))
    return found


def trained(
    env: BatchedEnv, algorithm: Mapping[str, object], seed: int, rounds: Sequence[int], *, steps: int, episodes: int
) -> list[float]:
    """Greedy returns per agent after these numbers of rounds, of independent policies with nets of [64, 64]."""
    (agents,) = env.spaces.classes
    entry, found = algorithms.algorithm(str(algorithm["name"])), []
    config = entry.config_type.model_validate(dict(algorithm))
    (scope,) = scopes(entry, config, env.spaces)
    model = ModelSpec.model_validate({"hidden": TASK.hidden})
    learner = entry.learner(config, LearnerContext(model, env.spaces, scope, "cpu"))
    groups = tuple(Group(agent, (agent,)) for agent in agents.agents)
    for name in learner.names(groups):
        learner.load(name, learner.initial(name, seed))
    for number in range(max(rounds) + 1):
        policies = [ActingPolicies.from_states(agents, [learner.state(agent) for agent in agents.agents])]
        if number in rounds:
            stats = play(env, policies, episodes=episodes, seed=1000)
            found.append(sum(stats.return_sum.values()) / len(agents.agents) / stats.episodes)
        if number < max(rounds):
            sampled, _ = rollout(env, policies, steps=steps, seed=100_000 * seed + number, with_state=False)
            learner.update(RoundInput(number, number * steps * env.batch, seed, groups, [sampled]))
    return found


def ours(seed: int, rounds: Sequence[int], at: str, more: Mapping[str, object]) -> list[float]:
    """The returns of marless's learner after these numbers of rounds, with the settings of `at` and `more`."""
    job: dict[str, Any] = settings(Request(seed, 0))  # Any: sections of a job file
    chosen = {"task": job["algorithm"], "own": {"name": "ippo", **OWN["ippo"]}, "defaults": {"name": "ippo"}}[at]
    return trained(make_env(COPIES), {**chosen, **more}, seed, rounds, steps=TASK.episode_steps, episodes=EPISODES)


def balanced(seed: int, normalised: bool) -> float:
    """The return of IQL on CartPole after 60,000 env steps, in rounds of 500 steps of 4 copies."""
    explored = {"start": 1.0, "end": 0.05, "env_steps": 20_000}
    iql = {"name": "iql", "reward_normalisation": normalised, "epsilon": explored}
    return trained(registry.make("game/cartpole", {}, 4), iql, seed, [30], steps=500, episodes=20)[0]


def row(system: str, env_steps: Sequence[int], returns: Sequence[Sequence[float]]) -> Row:
    """One row of the table: mean ± standard deviation over seeds, by number of env steps."""
    found: Row = {"system": system}
    for steps, each in zip(env_steps, zip(*returns, strict=True), strict=True):
        deviation = f" ± {statistics.stdev(each):.2f}" if len(each) > 1 else ""
        found[f"return at {steps:,}"] = f"{statistics.mean(each):.2f}{deviation}"
    return found | {"seeds": len(returns)}


def rewards(runs: int) -> list[Row]:
    """The table of IQL's returns, with scaled rewards and with rewards as they are."""
    found: list[Row] = []
    for normalised in (True, False):
        returns = [balanced(seed, normalised) for seed in range(runs)]
        each = " / ".join(f"{one:.1f}" for one in returns)
        harness.say(f"reward_normalisation: {normalised}: {each}")
        found.append({"reward_normalisation": str(normalised).lower(), "return on CartPole, each seed": each})
    return found


def values(runs: int, env_steps: Sequence[int], at: str) -> list[Row]:
    """The table of returns by how values are scaled."""
    rounds = [steps // TASK.iteration_env_steps for steps in env_steps]
    returns: dict[str, list[list[float]]] = {name: [] for name in ([PLAIN] * (at == "task") + [*VARIANTS])}
    for seed in range(runs):
        for name, of in returns.items():
            of.append(plain(seed, rounds) if name == PLAIN else ours(seed, rounds, at, VARIANTS[name]))
            harness.say(f"{name}, seed {seed}: {', '.join(f'{each:.2f}' for each in of[-1])}")
    return [row(name, env_steps, of) for name, of in returns.items()]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--env-steps", default="104000,416000", help="numbers of env steps, comma-separated")
    parser.add_argument("--at", choices=AT, default=AT[0], help="the settings of all systems; default: the task's")
    parser.add_argument("--rewards", action="store_true", help="compare how rewards are scaled instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about, env_steps = harness.machine(), sorted(int(part) for part in args.env_steps.split(","))
    rows = rewards(args.runs) if args.rewards else values(args.runs, env_steps, args.at)
    harness.report("rewards" if args.rewards else "values", about, rows, {}, args.json)


if __name__ == "__main__":
    main()
