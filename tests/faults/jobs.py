"""The jobs of the table of faults: small ones of each schedule and family, by the names that they have there.

`JOBS` are those whose services are in this process, `PROCESS_JOBS` those whose services are processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marless.jobs.spec import JobSpec
from tests.faults.pools import DOCUMENT
from tests.integration.running import ENVS, STEPS, spec
from tests.integration.test_same_weights import ALGORITHMS, EVERYTHING, RIVALS, TEAM

Document = Mapping[str, Any]  # Any: YAML

PPO = {"epochs": 1, "minibatches": 2}
THREE = {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": STEPS}}
FIVE = {"name": "mpe/simple_spread", "options": {"agents": 5, "max_cycles": STEPS}}
SIDES = {"name": "mpe/simple_adversary", "options": {"max_cycles": STEPS}}
SCRIPTED = {"scaling": "scripted", "sharing": {"name": "scripted", "period": 2}}
GROUPS = SCRIPTED | {
    "env": THREE,
    "actors": {"count": 3, "envs": ENVS, "steps": STEPS},
    "stop": {"rounds": 7},
}
"""Agents that share in rounds 2 and 3, and again in round 6; 1 to 3 actors."""
NORMALISED = {"model": {"normalise_observations": True}}
"""Policies have statistics of what was observed, which neither a fault nor a change of groups may alter."""
CARRIED = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 7}},
    "model": {"hidden": [8]},
    "actors": {"count": 3, "envs": ENVS, "steps": 3, "episodes": "carried"},
    "scaling": "scripted",
    "stop": {"rounds": 7},
}
"""Episodes of 7 steps in rounds of 3; 1 to 3 actors, so that lanes rest and come back."""
DECIDES = {
    "env": FIVE,
    "actors": {"count": 6, "envs": ENVS, "steps": STEPS},
    "scaling": "marless",
    "sharing": {"name": "marless", "window": 2, "threshold": 4.99},
    "stop": {"rounds": 8},
}
"""The policies of marless share or split every other round, for hardly any trend is as steep."""
TRENDS = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 4, "max_cycles": STEPS}},
    "actors": {"count": 1, "envs": 4, "steps": STEPS},
    "sharing": {"name": "marless", "window": 2, "threshold": 1.0, "schedule": "figure", "similarity": {"samples": 16}},
    "evaluation": {"every": 0, "episodes": 2, "random_episodes": 2},
    "stop": {"rounds": 10},
}
LEARNS = {"updates": 3, "batch": 16, "warmup": 40, "replay": {"capacity": 2000}}
"""Learning begins with the second round, whatever it has."""
SMALL_Q = {"warmup": 8, "batch": 8}
WRAPS = {"name": "iql", "updates": 2, "batch": 8, "warmup": 20, "replay": {"capacity": 70}}
"""A round has 20 env steps in 4 episodes, 24 frames: the replay holds two rounds and most of a third."""
IMAGES = {
    "env": {"name": "atari/Breakout", "options": {"screen": 20, "noop_max": 2, "max_frames": 22}},
    "model": {"hidden": [8], "frames": 4},
    "actors": {"count": 2, "envs": 3, "steps": 3, "episodes": "carried"},
    "evaluation": {"every": 3, "episodes": 2, "random_episodes": 2},
    "stop": {"rounds": 6},
}
"""Episodes of some 6 env steps in rounds of 3, whose nets read four images."""
WALLS = {
    "env": {
        "name": "wall_model/llwm",
        "options": {
            "grid": {"nx": 8, "ny": 10, "nz": 8},
            "re_tau": [2000, 8000],
            "stride": 4,
            "decisions": 5,
            "snapshots": 2,
            "spin_up": 0.05,
            "apart": 0.05,
        },
    },
    "model": {"hidden": [8], "agent_id": False, **NORMALISED["model"]},
    "sharing": {"groups": "shared"},
    "actors": {"count": 2, "envs": 2, "steps": 3, "episodes": "carried"},
    "evaluation": {"every": 3, "episodes": 2, "random_episodes": 2},
    "stop": {"rounds": 6},
}
"""Turbulent flows with four agents on the wall, whose episodes of 5 decisions go on over rounds of 3."""

SYNCHRONOUS: Mapping[str, Document] = {
    "ippo": {},
    "ippo bucket": {},
    "ippo groups": GROUPS | NORMALISED,
    "mappo groups": GROUPS | NORMALISED | {"algorithm": {"name": "mappo", **PPO}, "stop": {"rounds": 5}},
    "ippo splits": GROUPS | {"sharing": SCRIPTED["sharing"] | {"groups": "shared"}, "stop": {"rounds": 4}},
    "maddpg groups": GROUPS | NORMALISED | {"env": SIDES, "algorithm": {"name": "maddpg", **LEARNS}},
    "ippo decides": DECIDES | {"sharing": DECIDES["sharing"] | {"samples": "drawn"}},
    "mappo decides": DECIDES
    | {"algorithm": {"name": "mappo", **PPO}, "sharing": DECIDES["sharing"] | {"samples": "pooled"}},
    "vdn decides": DECIDES | {"algorithm": {"name": "vdn", **LEARNS, "warmup": 70}},
    "ippo trends": TRENDS,
    "ippo carried": CARRIED | {"model": {"hidden": [8], "recurrent": "gru", **NORMALISED["model"]}},
    "pqn_vdn groups": GROUPS | NORMALISED | {"algorithm": {"name": "pqn_vdn", **PPO}},
    "vdn carried": CARRIED | {"algorithm": {"name": "vdn", **SMALL_Q}},
    "maddpg carried": CARRIED | {"algorithm": {"name": "maddpg", **SMALL_Q}},
    "iql": {"algorithm": WRAPS | {"replay": {"capacity": 500}}},
    "iql wraps": {"algorithm": WRAPS},
    "ippo walls": WALLS | {"algorithm": {"name": "ippo", **PPO}},
    "ippo images": IMAGES | {"algorithm": {"name": "ippo", "torso": "shared", **PPO}},
    "iql images": IMAGES | {"algorithm": {"name": "iql", **SMALL_Q, "updates": 2, "replay": {"capacity": 90}}},
}
OF_ALL: Mapping[str, Document] = {
    f"{name} everything": EVERYTHING
    | {"env": TEAM if name in ("vdn", "qmix", "pqn_vdn") else RIVALS, "algorithm": {"name": name, **settings}}
    for name, settings in ALGORITHMS.items()
}
FRESH = {"actors": {"count": 3, "envs": 2, "steps": 5, "episodes": "fresh"}, "stop": {"rounds": 8}}
GRADIENTS = {"algorithm": {"name": "ippo", "truncation": "least"}, "schedule": {"name": "stellaris", "learners": 2}}
UPDATES = {"updates": 2, "batch": 8, "warmup": 20, "replay": {"capacity": 2000}}
"""Learning begins with the second version."""
STELLARIS: Mapping[str, Document] = {
    "ippo": FRESH | GRADIENTS,
    "vdn": FRESH | {"algorithm": {"name": "vdn", **UPDATES}},
    "qmix": FRESH | {"algorithm": {"name": "qmix", **UPDATES}},
    "maddpg": FRESH | {"algorithm": {"name": "maddpg", **UPDATES}},
    "pqn_vdn": FRESH | {"algorithm": {"name": "pqn_vdn", **PPO}},
    "iddpg rivals": FRESH | {"env": RIVALS, "algorithm": {"name": "iddpg", **UPDATES}},
    "ippo groups": FRESH | GRADIENTS | SCRIPTED | NORMALISED | {"env": THREE, "stop": {"rounds": 9}},
    "vdn groups": FRESH
    | SCRIPTED
    | NORMALISED
    | {"env": THREE, "algorithm": {"name": "vdn", "warmup": 0, "batch": 8}, "stop": {"rounds": 9}},
}
JOBS: Mapping[str, Mapping[str, Document]] = {
    "synchronous": SYNCHRONOUS | OF_ALL,
    "pipelined": {"ippo bucket": {}} | OF_ALL,
    "stellaris": STELLARIS,
}

TWO_SCOPES = DOCUMENT | {"name": "two-scopes", "env": {"name": "mpe/simple_adversary", "options": {"max_cycles": 5}}}
"""Agents of two classes, each with a learner of its own."""
SCOPES = {"two-scopes": 2}
"""How many learners a job has that has more than one."""
CHANGING = DOCUMENT | {
    "name": "changing",
    "env": {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": 7}},
    "actors": {"count": 3, "envs": 4, "steps": 5, "episodes": "carried"},
    "scaling": "scripted",
    "sharing": {"name": "scripted", "period": 2},
}
"""A job whose groups and number of actors change every other round."""
CAPACITY = 250
"""Frames: some four rounds of 20 to 60 env steps, of which each episode takes one frame more."""
REMEMBERING = CHANGING | {
    "name": "remembering",
    "env": {"name": "mpe/simple_spread", "options": {"agents": 3, "max_cycles": 5}},
    "actors": {"count": 3, "envs": 4, "steps": 5, "episodes": "fresh"},
    "algorithm": {
        "name": "vdn",
        "updates": 3,
        "batch": 16,
        "warmup": 40,
        "epsilon": {"start": 1.0, "end": 0.1, "env_steps": 1000},
        "replay": {"capacity": CAPACITY, "draw": "prioritised"},
    },
}
"""A job that learns from a replay, whose rounds go around its end and whose groups change."""
ASYNCHRONOUS = DOCUMENT | {
    "name": "asynchronous",
    "algorithm": {"name": "mappo", "truncation": "least"},
    "actors": {"count": 3, "envs": 4, "steps": 5, "episodes": "fresh"},
    "schedule": {"name": "stellaris", "learners": 2},
}
REPLAYED = ASYNCHRONOUS | {
    "name": "replayed",
    "algorithm": {"name": "qmix", "updates": 2, "batch": 8, "warmup": 20, "replay": {"capacity": 250}},
    "schedule": "stellaris",
}
"""A job whose learner makes each version by itself, from a replay that outlives it and holds some ten rollouts."""
LEARNING = ASYNCHRONOUS | {
    "name": "learning",
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2}},
    "algorithm": {"name": "mappo", "lr": 4e-3, "gamma": 0.95},
    "model": {"hidden": [32, 32]},
    "actors": {"count": 3, "envs": 32, "steps": 25, "episodes": "fresh"},
    "evaluation": {"every": 100, "episodes": 200, "random_episodes": 200},
    "schedule": {
        "name": "stellaris",
        "learners": 3,
        "data_lag": 6,
        "aggregation": {"rule": "softsync", "gradients": 2},
    },
}
"""A job that learns: after 400 versions it is as good as it gets, whatever its seed. Each is made of two gradients or
more."""
PROCESS_JOBS: Mapping[str, Mapping[str, Document]] = {
    "synchronous": {
        "small": DOCUMENT,
        "two-scopes": TWO_SCOPES,
        "changing": CHANGING,
        "remembering": REMEMBERING,
    },
    "pipelined": {"small": DOCUMENT | {"name": "small-pipelined", "schedule": "pipelined"}},
    "stellaris": {"asynchronous": ASYNCHRONOUS, "replayed": REPLAYED, "learning": LEARNING},
}


def spec_of(schedule: str, job: str, **changes: object) -> JobSpec:
    """The spec of a job of the table, with some of its sections replaced."""
    return spec(**{"schedule": schedule, **JOBS[schedule][job], **changes})
