"""What comes in requests and on command lines."""

from __future__ import annotations

import base64
import json
from typing import Any

from marless.cost.estimates import calibration as calibrations
from marless.jobs import prices as price_tables
from marless.jobs import spec as specs
from marless.learning.data.trajectory import TrajectorySchema
from marless.services.coordinator.state.runs import _read_token
from marless.services.param_store.versions import position
from tests.fuzz import scratch
from tests.fuzz.choices import ODD, Choices, document, text

JOB: dict[str, Any] = {
    "name": "tiny",
    "seed": 5,
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 5}},
    "algorithm": {"name": "ippo", "epochs": 1, "lr": {"start": 0.1, "end": 0.01, "env_steps": 100}},
    "model": {"hidden": [8], "activation": "tanh"},
    "actors": {"count": 2, "envs": 4, "steps": 5},
    "scaling": {"name": "fixed"},
    "sharing": {"name": "fixed", "groups": "shared"},
    "curvature": {"samples": 8},
    "functions": {"actor": {"vcpus": 1, "memory_mb": 1024}},
    "bill": {"accounting": "paper", "prices": {"region": "x"}},
    "evaluation": {"every": 3, "episodes": 4},
    "learner": {"device": "cpu"},
    "sinks": [{"name": "tensorboard"}],
    "stop": {"rounds": 6},
}
ALGORITHMS = ("ippo", "mappo", "iql", "vdn", "qmix", "iddpg", "maddpg", "sac", "pqn", "pqn_vdn")
SPACES: dict[str, Any] = {
    "classes": [
        {"name": "a", "agents": ["a", "b"], "obs_size": 3, "action": {"n": 5}},
        {"name": "c", "agents": ["c"], "obs_size": 2, "action": {"low": [0.0], "high": [1.0]}},
    ],
    "state_size": 4,
    "max_steps": 25,
    "masks": False,
    "deaths": True,
    "rewards": "cooperative",
    "wins": False,
    "team_reward": True,
}
PRICES: dict[str, Any] = {
    "region": "here",
    "keep_alive_s": 1,
    "lambda": {
        "rates": {"arm": {"on_demand": "0.1", "provisioned": 1e-5, "ready": 0}},
        **{"max_memory_mb": 100, "architecture": "arm", "request": 0.1, "granularity_ms": 1, "warm": "free"},
    },
    "fargate": {"vcpu_h": 1, "gb_h": "2.5", "minimum_s": 3},
    "ec2": {"serverful": "m", "instance": "m", "instances": {"m": {"usd_h": 1, "vcpus": 2, "memory_gb": 4.0}}},
    "redis": {"node": "n", "granularity_s": 1, "nodes": {"n": 0.1}},
}
CALIBRATION: dict[str, Any] = {
    "actor_s": [0.1, 0.2],
    "updates": [[{"function": "policy", "name": "a", "index": 0, "seconds": 0.1, "after": []}]],
    "samples_share": 1.0,
}
OVERRIDES = (
    *("algorithm=vdn", "algorithm.lr=0.1", "seed=3", "actors.count=5", "env.options.agents=4", "stop.rounds=9"),
    *("model.hidden=[1,2]", "sharing={name: fixed}", "sinks=[]", "name=x", "bill.prices={region: a}"),
)


def spec(choices: Choices) -> None:
    """A job as it is submitted; what is accepted is written out and read again."""
    job = {**JOB, "algorithm": choices.pick((JOB["algorithm"], *({"name": name} for name in ALGORITHMS)))}
    read = specs.from_json(text(scratch.json_text(document(job, choices)), choices))
    assert specs.from_json(read.to_json()) == read


def override(choices: Choices) -> None:
    """One or two --set."""
    job = json.loads(json.dumps(JOB))
    for _ in range(1 + choices.below(2)):
        key, _, value = choices.pick(OVERRIDES).partition("=")
        what = choices.below(6)
        if what == 1:
            key = choices.pick(("", ".", "a..b", "seed.x", "algorithm.x.y", "\ud800", "env.options.agents.x", "stop"))
        elif what in (2, 3):
            value = str(choices.pick(ODD))
        elif what == 4:
            value = choices.pick(
                (
                    "[" * 1500,
                    "!!python/name:os.system",
                    "&a [*a]",
                    "{a: *b}",
                    "2020-99-99",
                    "\t",
                    ": :",
                    "- " * 1500,
                    "!!binary x",
                    "!!timestamp x",
                    "0o9",
                    "!!int x",
                    "!!float x",
                    "!!set 1",
                    "!!omap 1",
                    "{[]: 1}",
                    "? {}",
                    "<<: 1",
                    "1_",
                    "0x",
                    "0b",
                    "-:1",
                    "190:20:30",
                )
            )
        specs.override_field(job, f"{key}={value}" if not choices.sometimes(32) else key)
    specs.parse(job, "job.yaml")


def prices(choices: Choices) -> None:
    """A price table, and what is asked of it."""
    table = price_tables.merged(document(PRICES, choices), "prices")
    for ask in (table.redis_h, table.family, lambda: table.instance("m"), lambda: table.lambda_.rate):
        ask()


def spaces(choices: Choices) -> None:
    """The spaces of an environment, and the sizes that follow from them."""
    read = specs.spaces_from_json(text(scratch.json_text(document(SPACES, choices)), choices))
    assert specs.spaces_from_json(specs.spaces_to_json(read)) == read
    TrajectorySchema(read, 2, 2, with_state=True).shapes(2)


def cursor(choices: Choices) -> None:
    """A cursor of a watch."""
    first, second = position(_token(choices, ("0-0", "1700000000000-3", "5-1", "")))
    assert first >= 0
    assert second >= 0


def page_token(choices: Choices) -> None:
    """A page token, or something that is nearly one."""
    inner = text(scratch.json_text(document([1.5, "job"], choices)), choices).encode("utf-8", "surrogatepass")
    token = base64.urlsafe_b64encode(inner).decode()
    _read_token(_token(choices, (token,)))


def _token(choices: Choices, valid: tuple[str, ...]) -> str:
    token = choices.pick(valid)
    what = choices.below(4)
    if what == 1:
        return choices.pick(
            ("-", "--", "-1-2", "²-³", "1-١", "9" * 5000 + "-0", "0-" + "9" * 30, "a-b", "1e3-0", "=", "é")
        )
    if what == 2:
        at = choices.below(len(token) + 1)
        return token[:at] + chr(choices.pick((0, 45, 48, 61, 95, 0xD800, 0x661))) + token[at + choices.below(2) :]
    return token


def calibration(choices: Choices) -> None:
    """What another process has measured."""
    calibrations.from_text(text(scratch.json_text(document(CALIBRATION, choices)), choices))
