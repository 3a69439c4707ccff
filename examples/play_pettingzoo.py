"""Play a trained team in PettingZoo's simple_spread: python examples/play_pettingzoo.py JOB_OR_PATH [SEED]."""

import sys

from mpe2 import simple_spread_v3

import marless

source, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
team = marless.load_policy(source)
env = simple_spread_v3.parallel_env(N=len(team.agents))
observations, _ = env.reset(seed=seed)
returns = dict.fromkeys(env.agents, 0.0)
while env.agents:
    observations, rewards, *_ = env.step(team.act(observations))
    for agent, reward in rewards.items():
        returns[agent] += reward
for agent, total in returns.items():
    print(f"{agent} {total:.2f}")
