"""Compares how critics' values are scaled, at the settings of the plain script and equal samples.

`python -m bench.values --json values.json`: independent PPO on the task of `bench.task`, in this process, by the plain
script and by marless's learner with its settings of `value_normalisation`, `popart` and `value_decay`. The result is
the greedy return per agent after some numbers of env steps; it does not depend on the speed of the machine.
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
from bench.task import TASK
from marless.algos import registry as algorithms
from marless.algos.base import Group, LearnerContext, ModelSpec, RoundInput, scopes
from marless.data.rollout import play, rollout
from marless.nets.acting import ActingPolicies

VARIANTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "marless, PopArt, decay 0.9 (default)": {},
        "marless, popart: false, value_decay: 0": {"popart": False, "value_decay": 0.0},
        "marless, value_normalisation: false": {"value_normalisation": False},
    }
)
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


def ours(seed: int, rounds: Sequence[int], more: Mapping[str, object]) -> list[float]:
    """The returns of marless's learner after these numbers of rounds."""
    job: dict[str, Any] = settings(Request(seed, 0))  # Any: sections of a job file
    env, found = make_env(COPIES), []
    (agents,) = env.spaces.classes
    entry = algorithms.algorithm(job["algorithm"]["name"])
    config = entry.config_type.model_validate({**job["algorithm"], **more})
    (scope,) = scopes(entry, config, env.spaces)
    learner = entry.learner(config, LearnerContext(ModelSpec.model_validate(job["model"]), env.spaces, scope, "cpu"))
    groups = tuple(Group(agent, (agent,)) for agent in agents.agents)
    for group in groups:
        learner.load(group.policy, learner.initial(group.policy, seed))
    for number in range(max(rounds) + 1):
        policies = [ActingPolicies.from_states(agents, [learner.state(agent) for agent in agents.agents])]
        if number in rounds:
            stats = play(env, policies, episodes=EPISODES, seed=1000)
            found.append(sum(stats.return_sum.values()) / len(agents.agents) / stats.episodes)
        if number < max(rounds):
            sampled, _ = rollout(
                env, policies, steps=TASK.episode_steps, seed=100_000 * seed + number, with_state=False
            )
            learner.update(RoundInput(number, number * TASK.iteration_env_steps, seed, groups, [sampled]))
    return found


def row(system: str, env_steps: Sequence[int], returns: Sequence[Sequence[float]]) -> Row:
    """One row of the table: mean ± standard deviation over seeds, by number of env steps."""
    found: Row = {"system": system}
    for steps, each in zip(env_steps, zip(*returns, strict=True), strict=True):
        deviation = f" ± {statistics.stdev(each):.2f}" if len(each) > 1 else ""
        found[f"return at {steps:,}"] = f"{statistics.mean(each):.2f}{deviation}"
    return found | {"seeds": len(returns)}


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--env-steps", default="104000,416000", help="numbers of env steps, comma-separated")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about, env_steps = harness.machine(), sorted(int(part) for part in args.env_steps.split(","))
    rounds = [steps // TASK.iteration_env_steps for steps in env_steps]
    returns: dict[str, list[list[float]]] = {name: [] for name in ("plain script", *VARIANTS)}
    for seed in range(args.runs):
        for name, of in returns.items():
            of.append(ours(seed, rounds, VARIANTS[name]) if name in VARIANTS else plain(seed, rounds))
            harness.say(f"{name}, seed {seed}: {', '.join(f'{each:.2f}' for each in of[-1])}")
    rows = [row(name, env_steps, of) for name, of in returns.items()]
    harness.report("values", about, rows, {}, args.json)


if __name__ == "__main__":
    main()
