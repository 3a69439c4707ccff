"""The command `card`: how a team was trained and what it earns, as Markdown, to go beside its file."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from marless.app.cli.output import duration, number, percent
from marless.core import documents, regular_files
from marless.core.errors import CorruptError, SpecError
from marless.jobs.record import Evaluation, RoundRecord
from marless.learning.data.returns import EpisodeReturns

if TYPE_CHECKING:
    from marless.app.cli.recorded import Recorded
    from marless.jobs.spec import JobSpec
    from marless.learning.policies.team import Team

MOST_POINTS = 50
"""Points of a training curve in a card."""
MOST_ROWS = 10
"""Points of it in the text."""
_USUAL = {"schedule.name": "synchronous", "scaling.name": "fixed", "sharing.name": "fixed"} | {
    f"stop.{rule}": None for rule in ("rounds", "env_steps", "return", "wall_s", "cost_usd")
}
"""Settings without a default value, and what is not worth telling of them."""
_ELSEWHERE = ("name.", "seed.", "env.name.", "env.options.", "algorithm.name.")
"""Beginnings of settings that a card has in fields of their own."""
_MOST_AGENTS = 20
"""Agents whose returns are told one by one in the text."""
_SIZE = "number", "numbers"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is told of a team: its job until these policies were published, and nothing of what came later."""

    job: str
    environment: str
    environment_options: Mapping[str, Any]  # Any: JSON
    algorithm: str
    settings: Mapping[str, Any]  # Any: JSON
    """Settings of the job that are not defaults, by name: "actors.count"."""
    seed: int
    marless: str
    """The version that ran the job last; "" if not recorded."""
    rounds: int
    env_steps: int
    training_s: float
    """Seconds of training, without interruptions."""
    finished: str
    """When the last of these rounds had ended: 2026-11-28T21:28:44Z."""
    device: str
    """The setting `learner.device`."""
    machines: int
    """Machines that its workers ran on; 0 if not recorded."""
    vcpus: float
    """Of all these machines."""
    evaluation: Evaluation | None
    """The newest greedy evaluation."""
    random: EpisodeReturns | None
    """The random baseline."""
    curve_of: str
    """What `curve` shows: greedy, or exploring if there were too few greedy evaluations."""
    curve: tuple[tuple[int, float], ...]
    """At most `MOST_POINTS` pairs of env steps and mean return per agent."""
    cost_usd: Mapping[str, float]
    """US dollars of all these rounds, by accounting."""
    counts_as: str
    """The accounting of the job's budget."""
    prices: str
    """The price list: its region and date."""


def card_of(team: Team) -> Card | None:
    """The card of a team: from the records of its run folder, or from the file it was loaded from; None if neither has
    one, as a single checkpoint or policy.

    Raises CorruptError if they are damaged, SpecError if a price is missing.
    """
    folder = team.origin.run_dir
    if folder is None or not regular_files.is_there(folder / "job.json"):
        return _parsed(team.card) if team.card else None
    from marless.app.cli.recorded import from_folder

    return _made(from_folder(folder), team.origin.job, team.origin.round)


def _parsed(card: Mapping[str, Any]) -> Card:  # Any: JSON
    known = {field.name for field in dataclasses.fields(Card)}
    try:
        # A later version may write more; what is missing, or of another type, is no card.
        found = {name: value for name, value in card.items() if name in known}
        read = documents.dataclass_of(Card, found, unlimited=(EpisodeReturns,))
        if any(each.episodes < 1 for each in (read.random, read.evaluation and read.evaluation.returns) if each):
            raise ValueError("a mean of no episode")
        return read
    except ValueError as error:
        raise CorruptError(f"the card in the file is none of marless export: {error}") from None


def _made(run: Recorded, job: str, rounds: int) -> Card:
    from marless.app.cli.costs import amounts
    from marless.cost.billing.bill import bill
    from marless.jobs import prices

    records, spec = run.records[:rounds], run.spec
    table = prices.merged(spec.bill.prices)
    made = bill(records, spec, table, run.kept if len(records) == len(run.records) else None)
    # The round after may hold the evaluation of the last one.
    evaluations = [each for record in run.records for each in record.evaluations if each.rounds <= rounds]
    kind, points = curve_of(run.records, rounds)
    vcpus = {each.id: each.vcpus for each in made.machines}
    return Card(
        job=job,
        environment=spec.env.name,
        environment_options=spec.model_dump(mode="json")["env"]["options"],
        algorithm=spec.algorithm.name,
        settings=changed_settings(spec),
        seed=spec.seed,
        marless=run.marless_version,
        rounds=len(records),
        env_steps=records[-1].env_steps if records else 0,
        training_s=round(sum(record.spent_s for record in records), 3),
        finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(records[-1].ended_s)) if records else "",
        device=spec.learner.device,
        machines=len(vcpus),
        vcpus=sum(vcpus.values()),
        evaluation=evaluations[-1] if evaluations else None,
        random=run.random,
        curve_of=kind,
        curve=thinned(points, MOST_POINTS),
        cost_usd=amounts(made),
        counts_as=spec.bill.accounting,
        prices=f"{table.region}, {min(each.date for each in (table.lambda_, table.fargate, table.ec2, table.redis))}",
    )


def curve_of(records: Sequence[RoundRecord], rounds: int | None = None) -> tuple[str, list[tuple[int, float]]]:
    """What the training curve of the first `rounds` rounds shows, greedy or exploring returns, and its points."""
    most = len(records) if rounds is None else rounds
    evaluations = [each for record in records for each in record.evaluations if each.rounds <= most]
    if len(evaluations) > 1:
        return "greedy", [(each.env_steps, each.returns.mean) for each in evaluations]
    return "exploring", [(each.env_steps, each.returns.mean) for each in records[:most] if each.returns]


def thinned(points: Sequence[tuple[int, float]], most: int) -> tuple[tuple[int, float], ...]:
    """At most so many points at equal distances, with the first and the last."""
    if len(points) <= most:
        return tuple(points)
    return tuple(points[round(place * (len(points) - 1) / (most - 1))] for place in range(most))


def changed_settings(spec: JobSpec) -> Mapping[str, Any]:  # Any: JSON
    """The settings of a job that are not defaults, by their names in `--set`."""
    document = spec.model_dump(mode="json", by_alias=True)
    defaults = _defaults(document)
    return {
        name: value
        for name, value in _flat(document)
        if (name not in defaults or defaults[name] != value)
        and _USUAL.get(name, "") != value
        and not f"{name}.".startswith(_ELSEWHERE)
    }


def _defaults(document: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON
    """The settings of a job that has set none but its environment, and the names of its rules."""
    from marless.jobs.spec import parse

    least = {"env": document["env"], "algorithm": {"name": document["algorithm"]["name"]}, "stop": document["stop"]}
    for section in ("schedule", "scaling", "sharing"):
        named = {**least, section: {"name": document[section]["name"]}}
        with suppress(SpecError):  # a rule with settings that have no default: then all of its settings are told
            parse(named, "defaults")
            least = named
    found = dict(_flat(parse(least, "defaults").model_dump(mode="json", by_alias=True)))
    return {name: value for name, value in found.items() if name not in _USUAL}


def _flat(document: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:  # Any: JSON
    for name, value in document.items():
        if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def markdown(card: Card, team: Team) -> str:
    """A card as Markdown; equal cards give equal text."""
    agents = len(team.agents)
    file = f"{card.job}.safetensors"
    parts = [
        f"# {card.job}",
        f"{agents} {'agent' if agents == 1 else 'agents'} for `{card.environment}`, trained with {card.algorithm} by "
        f"marless{card.marless and f' {card.marless}'}.",
        "## Environment",
        f"`{card.environment}`{_options(card.environment_options)}.",
        _table(("policy", "agents", "an agent observes", "actions"), _policies(team)),
        "## Training",
        _table(("", ""), _training(card)),
        "Settings that are not defaults:" if card.settings else "All settings are defaults.",
        _table(("setting", "value"), [(name, f"`{json.dumps(each)}`") for name, each in card.settings.items()]),
        "## Results",
        "Undiscounted return per agent, the mean of whole episodes.",
        _table(("policy", "return", "standard error", "episodes", "won"), _results(card)),
        _table(("agent", "greedy return", "random actions"), _by_agent(card)),
        f"The training curve ({card.curve_of} policies):" if card.curve else "",
        _table(
            ("env steps", "return"), [(f"{steps:,}", number(each)) for steps, each in thinned(card.curve, MOST_ROWS)]
        ),
        "## Cost",
        f"By list prices ({card.prices}); the job's own cost counts as {card.counts_as}. `serverful` is modelled.",
        _table(("accounting", "US $"), [(name, f"{usd:,.6f}") for name, usd in card.cost_usd.items()]),
        "## Use",
        f'```python\nimport marless\n\nteam = marless.load_policy("{file}")\nactions = team.act(observations)  '
        "# both by agent\n```",
        "These policies remember: call `team.begin()` when an episode starts." if team.remembers else "",
        "It needs `pip install marless` and no torch. For episodes with a table of returns: "
        f"`marless evaluate {file}`.",
        "## Licence",
        "*To be filled in by the author.*",
    ]
    return "\n\n".join(part for part in parts if part)


def _options(options: Mapping[str, Any]) -> str:  # Any: JSON
    told = ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in options.items())
    return f" with {told}" if told else ", with its default options"


def _policies(team: Team) -> list[tuple[str, ...]]:
    from marless.learning.envs.base import Discrete

    rows: list[tuple[str, ...]] = []
    for name, policy in team.policies.items():
        action = policy.action
        kind = f"{action.n} to choose from" if isinstance(action, Discrete) else f"{action.n} continuous"
        size, image = policy.obs_size, policy.agent_class.image
        seen = f"{size:,} {_SIZE[size != 1]}" if image is None else f"images of {' · '.join(map(str, image))}"
        rows.append((name, ", ".join(policy.agents), seen, kind))
    return rows


def _training(card: Card) -> list[tuple[str, ...]]:
    where = f"{card.machines} {'machine' if card.machines == 1 else 'machines'}, {card.vcpus:g} vCPUs"
    return [
        ("algorithm", card.algorithm),
        ("seed", f"{card.seed}"),
        ("env steps", f"{card.env_steps:,}"),
        ("rounds", f"{card.rounds:,}"),
        ("training time", duration(card.training_s)),
        ("finished", card.finished),
        ("learners' device", card.device),
        *([("workers ran on", where)] if card.machines else []),
    ]


def _results(card: Card) -> list[tuple[str, ...]]:
    rows = []
    if greedy := card.evaluation:
        when = "" if greedy.rounds == card.rounds else f" after {greedy.rounds:,} rounds"
        rows.append((f"greedy{when}", *_scores(greedy.returns)))
    if card.random:
        rows.append(("random actions", *_scores(card.random)))
    return rows


def _by_agent(card: Card) -> list[tuple[str, ...]]:
    """The returns of each agent: where agents compete, the mean of all says nothing."""
    greedy = card.evaluation.returns.per_agent if card.evaluation else {}
    chance = card.random.per_agent if card.random else {}
    if not 1 < len(greedy) <= _MOST_AGENTS:
        return []
    return [(name, number(each), number(chance[name]) if name in chance else "") for name, each in greedy.items()]


def _scores(returns: EpisodeReturns) -> tuple[str, ...]:
    return number(returns.mean), number(returns.standard_error), f"{returns.episodes:,}", percent(returns.win_rate)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without columns that are empty in all rows; "" without rows."""
    if not rows:
        return ""
    kept = [place for place in range(len(titles)) if any(row[place] for row in rows)]
    cells = [[row[place].replace("|", r"\|") for place in kept] for row in (titles, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (cells[0], ["---"] * len(kept), *cells[1:]))
