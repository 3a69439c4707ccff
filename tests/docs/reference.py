"""Writes docs/settings.md from the fields that check job files: `python -m tests.docs.reference`.

A test compares the page with what would be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from marless.app.cli.discover import PLAIN
from marless.core import documents
from marless.jobs import spec as specs
from marless.jobs.reference import SettingInfo, settings_of
from marless.jobs.scaling.base import SCALING_POLICIES
from marless.jobs.schedules.base import SCHEDULES
from marless.jobs.sharing.base import SHARING_POLICIES
from marless.learning.aggregation.config import RULES
from marless.learning.algos.registry import ALGORITHMS
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Settings

Every setting of a job file. `--set section.name=value` sets one for one run.
`marless settings` prints these tables, also for installed packages.

An empty default is `null`. Column "of" names the algorithms, schedules or policies that have the setting, or rules of
`schedule.aggregation.rule` (stellaris, softsync, ssp, async, sync). Not here: the scaling policy `minions`, which needs
a [scheduler that was trained](scaling.md), and the settings of sinks ([metrics.md](metrics.md)).

*PPO* means ippo, mappo and impact, *Q* iql, vdn and qmix, *PQN* pqn and pqn_vdn, *DPG* iddpg and maddpg, *TD3* td3 and
matd3, *SAC* sac and masac, *off-policy* all but PPO and PQN. A *schedule* is a number, or
`{start: 0.002, end: 0.0, env_steps: 1_000_000}`: linear over the first env steps of the job. Upper limits of
1,000,000,000 and more are left out.
"""
FAMILIES = {
    "ddpg, iddpg, iql, maddpg, masac, matd3, pqn, pqn_vdn, qmix, sac, td3, vdn": "all but PPO",
    "ddpg, iddpg, impact, ippo, iql, maddpg, mappo, masac, matd3, pqn, sac, td3": "all but vdn, qmix, pqn_vdn",
    "iql, pqn, pqn_vdn, qmix, vdn": "Q, PQN",
    "pqn, pqn_vdn": "PQN",
    "ddpg, iddpg, iql, maddpg, masac, matd3, qmix, sac, td3, vdn": "off-policy",
    "ddpg, iddpg, iql, maddpg, masac, matd3, sac, td3, vdn": "off-policy, not qmix",
    "iddpg, iql, maddpg, qmix, vdn": "Q, DPG",
    "ddpg, masac, matd3, sac, td3": "ddpg, TD3, SAC",
    "ddpg, iddpg, maddpg, masac, matd3, sac, td3": "DPG, ddpg, TD3, SAC",
    "ddpg, iddpg, maddpg, masac, sac": "DPG, ddpg, SAC",
    "ddpg, iddpg, maddpg, matd3, td3": "DPG, ddpg, TD3",
    "iddpg, maddpg, masac, sac": "DPG, SAC",
    "ddpg, iddpg, maddpg": "DPG, ddpg",
    "ddpg, matd3, td3": "ddpg, TD3",
    "matd3, td3": "TD3",
    "masac, sac": "SAC",
    "impact, ippo, mappo": "PPO",
    "iql, qmix, vdn": "Q",
    "iddpg, maddpg": "DPG",
}
"""Names of algorithms in column "of", as the page's head says it."""
SHORTER = (
    ("whole number", "integer"),
    ("true or false", "boolean"),
    (r" and ≤ 1,000,000,000(,000)*", ""),
    (r"number (.*), or section of start, end, env_steps", r"schedule \1"),
    (r"≥ (\S+) and ≤ (\S+)", r"\1–\2"),
    (r"([≥>]) (\S+) and ([≤<]) ", r"\1 \2, \3 "),
)
"""What columns say in fewer words than `marless settings`, which explains each setting by itself."""
CHOICES = {
    "algorithm": ALGORITHMS.names,
    "schedule": SCHEDULES.names,
    "scaling": lambda: SCALING_POLICIES.names() - {"minions"},  # has no defaults: it needs a scheduler that was trained
    "sharing": SHARING_POLICIES.names,
}
"""Sections whose settings depend on their name, and the names."""
TITLES = {"env": "env: the environment", "actors": "actors: what a round samples", "stop": "stop: when a job ends"}


def page() -> str:
    """The page, as Markdown."""
    plain = settings_of(specs.of_document(PLAIN, [], "job"))
    sections = dict.fromkeys(each.path.partition(".")[0] for each in plain)
    parts = [HEAD]
    for section in (*(each for each in sections if each not in ("name", "seed", "sinks")), "name, seed, sinks"):
        rows = _chosen(section) if section in CHOICES else [(each, "") for each in _of(plain, section)]
        parts.append("\n".join([f"## {TITLES.get(section, section)}", *_table(rows)]) + "\n")
    return "\n".join(parts)


def _of(settings: Sequence[SettingInfo], section: str) -> list[SettingInfo]:
    return [each for each in settings if each.path.partition(".")[0] in section.split(", ")]


def _chosen(section: str) -> list[tuple[SettingInfo, str]]:
    """The settings of a section under each of its names, equal ones once, with the names that have them."""
    names = sorted(CHOICES[section]())
    found: dict[SettingInfo, list[str]] = {}
    for name in names:
        for each, rules in _under(section, name).items():
            found.setdefault(each, []).append(
                name if rules == [""] or len(rules) == len(RULES) else f"rule {', '.join(rules)}"
            )
    order = {path: at for at, path in enumerate(dict.fromkeys(each.path for each in found))}
    rows = [(each, "all" if len(of) == len(names) else ", ".join(of)) for each, of in found.items()]
    return sorted(rows, key=lambda row: order[row[0].path])


def _under(section: str, name: str) -> dict[SettingInfo, list[str]]:
    """The settings that a section has with this name; those of `stellaris` with the rules that have them."""
    given = {"stellaris": ["actors.episodes=fresh"], "adapt": ["scaling.goal=0"], "given": ["scaling.actors=[1]"]}.get(
        name, []
    )
    found: dict[SettingInfo, list[str]] = {}
    for rule in RULES if name == "stellaris" else ("",):
        chosen = [f"schedule.aggregation.rule={rule}"] if rule else []
        job = specs.of_document(PLAIN, [f"{section}.name={name}", *given, *chosen], "job")
        for each in _of(settings_of(job), section):
            if each.path not in (f"{section}.name", "schedule.aggregation.rule"):
                # As text, so that equal ones can be found.
                text = SettingInfo(each.path, each.kind, documents.to_yaml_line(each.default), each.about)
                found.setdefault(text, []).append(rule)
    return found


def _table(rows: Sequence[tuple[SettingInfo, str]]) -> Iterator[str]:
    named = any(of for _, of in rows)
    yield f"| setting | value | default | {'of | ' if named else ''}meaning |"
    yield f"|---|---|---|{'---|' if named else ''}---|"
    above = ("", "")
    for each, of in rows:
        default = each.default if isinstance(each.default, str) else documents.to_yaml_line(each.default)
        default = "" if default in ("null", "") else f"`{default}`" if default != "required" else "required"
        kind = each.kind if default else each.kind.removesuffix(", or null")
        for long, short in SHORTER:
            kind = re.sub(long, short, kind)
        cells = [
            f"`{each.path}`",
            kind,
            default,
            *([FAMILIES.get(of, of)] if named else []),
            "as above" if above == (each.path, each.about) and each.about else each.about,
        ]
        above = (each.path, each.about)
        yield f"| {' | '.join(re.sub('<(?=[a-z])', '&lt;', cell).replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
