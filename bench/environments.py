"""Trains IPPO for a short time in every environment of PettingZoo's butterfly, classic and sisl, and of mpe2.

`python -m bench.environments --seconds 60 --json bench/results/environments.json` prints the table that
docs/environments.md sums up ("Which of them train"), and keeps it in that file. Environments that the file has already
are not run again, so an interrupted run goes on, and so does one that ended because of
`--stop-after-s`; `--only multiwalker_v9 --again` repeats one. `--limit-s` ends what takes longer than that altogether.

All agents of a class share a policy; everything not set here has its default. Where agents compete, their mean return
says nothing: there, each class (or, in games of one class, each agent) acts greedily against random opponents, and the
figure is what it earns above a random policy in its place. It is the mean over agents in all cases.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench import harness
from bench.harness import BenchError, Row
from bench.systems import marless_job
from marless import load_policy
from marless.core.errors import SpecError
from marless.learning.data.rollout import ActingPolicy, play
from marless.learning.envs import registry
from marless.learning.envs.allowed import installed
from marless.learning.envs.base import ActionArray, BoolArray, FloatArray, ObsArray, chance_acts
from marless.learning.envs.contract import check_env
from marless.learning.nets.acting import ActingPolicies
from marless.learning.policies.evaluation import against_chance, environment

INTERRUPTED = re.compile("did not end within|did not connect within")
"""Failures of a machine under load, whose environments are run again."""
LEFT_OUT = "pettingzoo.atari"
"""Its ROMs are no package."""
COMPETING = re.compile(r"pettingzoo\.classic\.(?!hanabi)|mpe2\.simple_(adversary|crypto|push|tag|world_comm)")
EPISODES = 20
GREEDY_LIMIT_S = 15.0
"""Seconds after which evaluations take no further episodes, except for those below."""
LONG_EPISODES: Mapping[str, float] = {"pettingzoo.sisl.pursuit_v5": 120.0}
"""Such seconds for environments of which no episode ends in `GREEDY_LIMIT_S`."""
WHY_NOT: Mapping[str, str] = {
    "pettingzoo.classic.rps_v2": "nothing can be won from random opponents",
    "pettingzoo.classic.hanabi_v5": "a team that has lost its lives scores 0, as nearly all beginners do",
}
"""Why a greedy policy is not above random, beside too few env steps."""
DRAWN_IF_RENDERED = ("pettingzoo.butterfly.cooperative_pong_v6", "pettingzoo.butterfly.pistonball_v6")
START_S = 240.0
"""Seconds for starting, evaluating and ending a job, beside training."""


def options(name: str) -> dict[str, object]:
    """The options of an environment, without which its agents would not see."""
    return {"render_mode": "rgb_array"} if name in DRAWN_IF_RENDERED else {}


def settings(name: str, seconds: float, *, repeatable: bool) -> dict[str, object]:
    """The job of an environment, whose episodes go on over rounds only if they are repeatable."""
    limit_s = LONG_EPISODES.get(name, GREEDY_LIMIT_S)
    return {
        "env": {"name": f"pettingzoo/{name}", "options": options(name)},
        "algorithm": {"name": "ippo", "lr": 2e-3, "gamma": 0.99},
        "actors": {"count": 2, "envs": 4, "steps": 64, "episodes": "carried" if repeatable else "fresh"},
        "sharing": {"name": "fixed", "groups": "shared"},
        "evaluation": {"every": 10**6, "episodes": EPISODES, "random_episodes": EPISODES, "limit_s": limit_s},
        "stop": {"wall_s": seconds},
    }


def measured(name: str, seconds: float, limit_s: float) -> Row:
    """The row of an environment: trained, or why not."""
    row: Row = {"environment": name.removeprefix("pettingzoo.")}
    try:
        spaces = registry.spaces(f"pettingzoo/{name}", options(name))
    except SpecError as error:
        return row | {"trains": _reason(error)}
    row["agents"] = len(spaces.agents)
    found: list[float] = []
    repeatable = _repeatable(name)
    asked = settings(name, seconds, repeatable=repeatable)
    try:
        job = marless_job(asked, limit_s, look=lambda run_dir: found.extend(_above(run_dir, name)))
    except BenchError as error:
        return row | {"trains": _reason(error)}
    random, greedy = job.summary["random_return"], job.summary["return"]
    known = random is not None and greedy is not None
    above = float(np.mean(found)) if found else greedy - random if known else None
    return row | {
        "trains": "yes" if repeatable else "yes, with actors.episodes: fresh",
        "env steps/s": round(job.summary["env_steps_per_s"]),
        "random": "no episode ended" if random is None else round(random, 2),
        "above random": "" if above is None else round(above, 2),
        "why not": why_not(name, above),
    }


def why_not(name: str, above: float | None) -> str:
    """Why the greedy policy is not above random; "" if it is."""
    if above is None:
        return f"no episode ended within {LONG_EPISODES.get(name, GREEDY_LIMIT_S):g} s"
    return "" if above > 0 else WHY_NOT.get(name, "too few env steps")


def _repeatable(name: str) -> bool:
    """Whether an episode is the same again under its seed."""
    try:
        check_env(lambda batch: registry.make(f"pettingzoo/{name}", options(name), batch, with_state=False), steps=6)
    except AssertionError:
        return False
    return True


def _reason(error: Exception) -> str:
    """The first part of the sentence that explains a refusal, without what the row says already."""
    lines = [line.strip(" │╭╰─╮╯") for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("{")]
    text = re.sub(r"^.*(?:\.yaml: |environment pettingzoo/\S+: )", "", said[-1] if said else "it did not end in time")
    return f"no: {text.partition(';')[0][:200]}"


def _above(run_dir: Path, name: str) -> list[float]:
    """For games in which agents compete: returns above random of each class or agent, against random opponents."""
    if not COMPETING.match(name):
        return []
    team = load_policy(run_dir)
    copies = environment(team, None, None, batch=4)
    try:
        spaces = copies.spaces
        if len(spaces.classes) > 1:
            sides = against_chance(team, episodes=EPISODES, seed=0)
            return [sides[each.name].greedy - sides[each.name].chance for each in spaces.classes for _ in each.agents]
        (trained,), (agents,) = team.acting(spaces), spaces.classes
        chance = play(copies, None, episodes=EPISODES, seed=0)
        found = []
        for seat, agent in enumerate(agents.agents):
            played = play(copies, [_Seat(trained, seat)], episodes=EPISODES, seed=0)
            found.append(played.return_sum[agent] / played.episodes - chance.return_sum[agent] / chance.episodes)
        return found
    finally:
        copies.close()


class _Seat:
    """One agent of a class acts greedily, all others at random."""

    def __init__(self, trained: ActingPolicies | ActingPolicy, seat: int) -> None:
        self._trained, self._seat, self._rng = trained, seat, np.random.default_rng(seat)

    def begin(self, batch: int) -> None:
        self._trained.begin(batch)

    def reset_memory(self, anew_NB: BoolArray) -> None:
        self._trained.reset_memory(anew_NB)

    def sample(
        self, obs_NBO: ObsArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        return self._trained.sample(obs_NBO, mask_NBA, rng)

    def greedy(self, obs_NBO: ObsArray, mask_NBA: BoolArray | None) -> ActionArray:
        agents = getattr(self._trained, "agent_class")  # noqa: B009  # of both kinds of policy
        drawn = chance_acts(agents, obs_NBO, mask_NBA, self._rng)
        drawn[self._seat] = self._trained.greedy(obs_NBO, mask_NBA)[self._seat]
        return drawn

    def to_env(self, action: ActionArray) -> ActionArray:
        return self._trained.to_env(action)


def main(argv: Sequence[str] | None = None) -> int:
    options = harness.parser(__doc__, runs=1)
    options.add_argument("--seconds", type=float, default=60.0, help="training time per environment")
    options.add_argument("--limit-s", type=float, default=None, help="limit per environment; default: --seconds + 240")
    options.add_argument("--only", nargs="+", default=None, metavar="NAME", help="environments, without their package")
    options.add_argument("--stop-after-s", type=float, default=math.inf, help="begin no further environment after it")
    options.add_argument("--again", action="store_true", help="run what the file has already")
    given = options.parse_args(argv)
    rows = {row["environment"]: row for row in _earlier(given.json)}
    about, deadline_s = harness.machine(), time.monotonic() + given.stop_after_s
    for name in installed():
        short = name.removeprefix("pettingzoo.")
        chosen = given.only is None or name.rpartition(".")[2] in given.only
        due = chosen and (given.again or short not in rows) and time.monotonic() < deadline_s
        if not name.startswith(LEFT_OUT) and due:
            harness.say(name)
            limit_s = given.limit_s or given.seconds + START_S
            rows[short] = measured(name, given.seconds, limit_s)
            if given.json:  # after each, so that an interrupted run goes on
                _write(given.json, about, given.seconds, rows)
    print(harness.table(_shown(rows)))
    return 0


def _earlier(file: Path | None) -> list[Row]:
    if file is None or not file.exists():
        return []
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if not INTERRUPTED.search(row["trains"])]


def _shown(rows: Mapping[str, Row]) -> list[Row]:
    """All rows in order, but those of environments whose package is missing here."""
    return [rows[key] for key in sorted(rows) if "is not installed" not in rows[key]["trains"]]


def _write(file: Path, about: Row, seconds: float, rows: Mapping[str, Row]) -> None:
    document = {"bench": "environments", "machine": about, "seconds": seconds, "rows": _shown(rows)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
