"""Measures what carried episodes bring and cost.

`python -m bench.carry learning --json carry-learning.json`: independent PPO in game/cartpole and the chain
(`bench.long_games`), in this process, with equal samples in all: rounds of whole episodes; rounds of 20 and of 50 steps
whose episodes go on in the next round (carried); and the same with new episodes in each round (fresh). Carried lanes
are saved, encoded, decoded and loaded into other copies after each round. Afterwards, 20 episodes are played greedily.

`python -m bench.carry cost --json carry-cost.json`: for 160 copies of mpe/simple_spread and rounds of 25 steps, the
bytes of a carry, and the time to save and encode it, relative to the rollout.

`python -m bench.carry rounds --json carry-rounds.json`: the time of a round of examples/spread.yaml, with all services,
when its episodes are carried and when they are fresh, and the CPU time of its processes, which other load hardly
affects. The two modes take turns.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import torch

from bench import harness
from bench.harness import Row, spread
from bench.long_games import Chain
from bench.off_policy_step import steady
from bench.processes import LEARNER, Cpu
from bench.systems import WARM_UP, marless_job
from marless.core.group import Group
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.data.carry import decode, encode
from marless.learning.data.rollout import Lane, play
from marless.learning.envs import registry
from marless.learning.envs.base import BatchedEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec

GAMES: Mapping[str, Callable[[int], BatchedEnv]] = MappingProxyType(
    {"cartpole": partial(registry.make, "game/cartpole", {}), "chain": Chain}
)
ROUND = 2000
"""Env steps of a round, in all modes; the number of copies follows."""
SETTINGS = {"name": "ippo", "lr": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "epochs": 8, "minibatches": 4}
MODEL = ModelSpec.model_validate({"hidden": (64, 64)})
PLAYED = 20
"""Episodes of the evaluation."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Number of runs → 97.5 % quantile of Student's t distribution."""


@dataclass(frozen=True)
class Mode:
    """How the env steps of a job are cut into rounds."""

    name: str
    steps: int
    """Steps of a round."""
    carried: bool


def modes(longest: int) -> tuple[Mode, ...]:
    """All modes for episodes of up to this many steps."""
    cut = [Mode(f"{kind} {n}", n, kind == "carried") for kind in ("carried", "fresh") for n in (20, 50)]
    return (Mode("whole episodes", longest, False), *cut)


def trained(game: str, mode: Mode, seed: int, env_steps: int) -> float:
    """Train, and return the mean return of the evaluation."""
    copies = max(ROUND // mode.steps, 1)
    lane, other = (Lane(GAMES[game](copies)) for _ in range(2))
    spaces = GAMES[game](1).spaces
    entry = algorithms.algorithm(str(SETTINGS["name"]))
    config = entry.config_type.model_validate(SETTINGS)
    groups = (Group("agent_0", ("agent_0",)),)
    (scope,) = scopes(entry, config, spaces)
    learner = entry.learner(config, LearnerContext(MODEL, spaces, scope, "cpu"))
    learner.load("agent_0", learner.initial("agent_0", seed))
    lane.begin(seed)
    for number in range(-(-env_steps // (copies * mode.steps))):
        if number and not mode.carried:
            lane.begin(1000 * seed + number)
        policies = [ActingPolicies.from_states(spaces.classes[0], [learner.state("agent_0")])]
        sampled, _ = lane.roll(
            policies, steps=mode.steps, seed=1000 * seed + number, with_state=False, index=0 if mode.carried else None
        )
        learner.update(RoundInput(number, number * copies * mode.steps, seed, groups, [sampled]))
        if mode.carried:
            other.load(decode(encode(lane.save())))
            lane, other = other, lane
    policies = [ActingPolicies.from_states(spaces.classes[0], [learner.state("agent_0")])]
    stats = play(GAMES[game](PLAYED), policies, episodes=PLAYED, seed=99)
    return stats.return_sum["agent_0"] / stats.episodes


def interval(returns: Sequence[float]) -> str:
    """Mean ± half the 95 % interval of Student's t distribution."""
    if len(returns) not in T_95:
        return f"{statistics.mean(returns):.1f}"
    half = T_95[len(returns)] * statistics.stdev(returns) / math.sqrt(len(returns))
    return f"{statistics.mean(returns):.1f} ± {half:.1f}"


def learning(games: Sequence[str], runs: int, env_steps: int) -> list[Row]:
    """The table of returns."""
    rows: list[Row] = []
    for game in games:
        for mode in modes(GAMES[game](1).spaces.max_steps or 0):
            returns = []
            for seed in range(runs):
                returns.append(trained(game, mode, seed, env_steps))
                harness.say(f"{game}, {mode.name}, seed {seed}: {returns[-1]:.1f}")
            each = " / ".join(f"{one:.1f}" for one in returns)
            rows.append({"game": game, "rounds": mode.name, "return": interval(returns), "each seed": each})
    return rows


def cost(runs: int, rounds: int = 40) -> list[Row]:
    """The table of bytes and times; the first rounds are not measured."""
    shares, bytes_, save_ms, roll_ms = [], [], [], []
    for seed in range(runs):
        env = registry.make("mpe/simple_spread", {}, 160)
        agents = env.spaces.classes[0]
        entry = algorithms.algorithm("ippo")
        config = entry.config_type.model_validate({"name": "ippo"})
        (scope,) = scopes(entry, config, env.spaces)
        learner = entry.learner(config, LearnerContext(MODEL, env.spaces, scope, "cpu"))
        policies = [ActingPolicies.from_states(agents, [learner.initial(agent, seed) for agent in agents.agents])]
        lane = Lane(env)
        lane.begin(seed)
        rolled, saved = [], []
        for number in range(rounds):
            begun_s = time.perf_counter()
            lane.roll(policies, steps=25, seed=number, with_state=False, index=0)
            done_s = time.perf_counter()
            data = encode(lane.save())
            rolled.append(done_s - begun_s)
            saved.append(time.perf_counter() - done_s)
        roll_ms.append(1000 * statistics.median(rolled[5:]))
        save_ms.append(1000 * statistics.median(saved[5:]))
        shares.append(100 * save_ms[-1] / roll_ms[-1])
        bytes_.append(float(len(data)))
    return [
        {
            "copies": 160,
            "carry (bytes)": int(spread(bytes_).median),
            "rollout (ms)": spread(roll_ms).cell(2),
            "save and encode (ms)": spread(save_ms).cell(3),
            "share (%)": spread(shares).cell(2),
        }
    ]


@dataclass(frozen=True)
class Round:
    """A round of a job in its steady state."""

    ms: float
    """Median milliseconds from the end of the round before."""
    cpu_ms: Mapping[str, float]
    """CPU milliseconds by role of the process."""

    @property
    def beside_ms(self) -> float:
        """CPU milliseconds of all but the learner worker, whose work does not depend on how episodes are cut."""
        return sum(self.cpu_ms.values()) - self.cpu_ms[LEARNER]


def measured(episodes: str, seed: int, env_steps: int) -> Round:
    """Run examples/spread.yaml; its first rounds and its last one are left out. Raises BenchError for a short run."""
    settings = {
        "seed": seed,
        "actors": {"count": 2, "envs": 80, "steps": 25, "episodes": episodes},
        "evaluation": {"every": 0, "random_episodes": 1},
        "stop": {"env_steps": env_steps},
    }
    cpu = Cpu()
    records = marless_job(settings, timeout_s=1200.0, watch=cpu).records[WARM_UP:-1]
    took_s = [float(now["ended_s"]) - float(then["ended_s"]) for then, now in pairwise(records)]
    found = steady(cpu.looks, records)
    by_role = {role: 1000 * used_s / found.rounds for role, used_s in found.cpu_s.items()}
    return Round(1000 * statistics.median(took_s), by_role)


def rounds(runs: int, env_steps: int) -> list[Row]:
    """The table of rounds with carried and with fresh episodes."""
    took: dict[str, list[Round]] = {"fresh": [], "carried": []}
    for seed in range(runs):
        for mode in took if seed % 2 else reversed(took):
            took[mode].append(measured(mode, seed, env_steps))
            shown = {role: round(ms, 1) for role, ms in took[mode][-1].cpu_ms.items() if ms >= 0.1}
            harness.say(f"pair {seed + 1} of {runs}: {mode}: {took[mode][-1].ms:.1f} ms, of CPU: {shown}")
    pairs = list(zip(took["carried"], took["fresh"], strict=True))
    longer = [100 * (carried.ms / fresh.ms - 1) for carried, fresh in pairs]
    more = [100 * (carried.beside_ms - fresh.beside_ms) / sum(fresh.cpu_ms.values()) for carried, fresh in pairs]
    return [
        {
            "episodes": mode,
            "round (ms)": spread([each.ms for each in found]).cell(1),
            "longer (%)": spread(longer).cell(1) if mode != "fresh" else "",
            "learner worker (CPU ms)": spread([each.cpu_ms[LEARNER] for each in found]).cell(1),
            "all else (CPU ms)": spread([each.beside_ms for each in found]).cell(1),
            "more of a round's CPU (%)": spread(more).cell(1) if mode != "fresh" else "",
        }
        for mode, found in took.items()
    ]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("what", choices=("learning", "cost", "rounds"))
    parser.add_argument("--games", type=lambda text: text.split(","), default=list(GAMES), help="comma-separated")
    parser.add_argument("--env-steps", type=int, default=None, help="of each run; 100,000 to learn, 400,000 for rounds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = harness.machine()
    if args.what == "cost":
        rows = cost(args.runs)
    elif args.what == "rounds":
        rows = rounds(args.runs, args.env_steps or 400_000)
    else:
        rows = learning(args.games, args.runs, args.env_steps or 100_000)
    harness.report(f"carry_{args.what}", about, rows, {"runs": args.runs}, args.json)


if __name__ == "__main__":
    main()
