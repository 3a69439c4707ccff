"""The command `check`: what marless sees of a job and its environment, without training. `train` prints its summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isinf
from typing import TYPE_CHECKING, Any

from marless.app.cli.options import JobFileArgument, Output, OutputOption, OverrideOption
from marless.app.cli.output import console, harmless, say, show_object
from marless.app.cli.working import Working
from marless.core import documents
from marless.core.errors import SpecError, some_of

if TYPE_CHECKING:
    from marless.jobs.job import PreparedJob
    from marless.jobs.spec import JobSpec
    from marless.learning.data.trial import Trial
    from marless.learning.envs.base import AgentClass, EnvSpaces

_LARGE, _SMALL = 30.0, 0.03
"""Observations beyond this size, or all below it, are far from the size 1 that nets learn best from."""
_MIB = 2**20
_STDERR = 2
"""Descriptor of standard error: whatever the environment prints, standard output is for data alone."""


def check(
    job_file: JobFileArgument,
    override: OverrideOption = [],  # noqa: B006  # typer's way
    output: OutputOption = Output.table,
) -> None:
    """Say in a second what marless sees of a job: agents, spaces, masks, rewards, ends; and what may go wrong.

    The environment is made once and played at random for a moment; nothing is trained, and nothing is started.
    """
    from marless.jobs import spec as specs
    from marless.jobs.job import advice

    source, spec = documents.name_of(job_file), specs.load(job_file, override)
    try:
        with Working(f"checking {source}: making {spec.env.name} once"):
            job, seen = _examined(spec)
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    notes = [each for each in (advice(job), *warnings(job, seen)) if each]
    if output is Output.table:
        _show(job, seen)
    else:
        show_object(_document(job, seen, notes), spec.name, output)
    for note in notes:
        say(f"note: {note}")


def _examined(spec: JobSpec) -> tuple[PreparedJob, Trial]:
    """The job, and what its environment showed; both from one process, because making one may take seconds."""
    from marless.jobs.examining import examine
    from marless.jobs.job import prepare
    from marless.learning.data.trial import SECONDS

    played: list[Trial] = []

    def examined(name: str, options: Mapping[str, Any]) -> tuple[EnvSpaces, bool]:  # Any: YAML
        found = examine(name, options, play_s=SECONDS, output=_STDERR)
        assert found.trial is not None  # as asked for
        played.append(found.trial)
        return found.spaces, found.can_be_saved

    job = prepare(spec, examined)
    return job, played[0]


def summary(job: PreparedJob) -> list[str]:
    """What marless sees of a job, in three lines."""
    spaces = job.spaces
    classes = "; ".join(f"{some_of(each.agents)} (class {each.name}): {_spaces_of(each)}" for each in spaces.classes)
    return [
        f"{_count(len(spaces.agents), 'agent')}: {classes}",
        f"{_masks(job)}; {_rewards(job)}; {_ends(job)}",
        f"{_training(job)}; {_memory(job)}",
    ]


def warnings(job: PreparedJob, seen: Trial) -> Iterator[str]:
    """What random play showed that may go wrong in training, a sentence each."""
    yield from at_a_glance(job, seen)
    for agents, shown in zip(job.spaces.classes, seen.classes, strict=True):
        if shown.still and shown.constant < agents.obs_size:
            yield (
                f"what class {agents.name} observed stayed the same in each episode, whatever was done, so its agents "
                "cannot see what they do"
            )
    yield from _reward_warnings(job, seen)
    if not seen.episodes and job.spaces.max_steps is None:
        how = " by env.options.max_episode_steps" if job.spec.env.name.startswith("gymnasium/") else ""
        yield (
            f"no episode ended within {seen.env_steps:,} random steps, and the environment declares no limit; "
            "evaluations count whole episodes, and are given up after evaluation.limit_s without one, so if episodes "
            f"have no end, set one{how}"
        )


def at_a_glance(job: PreparedJob, seen: Trial) -> Iterator[str]:
    """What a few random steps showed that may go wrong in training, a sentence each."""
    for agents, shown in zip(job.spaces.classes, seen.classes, strict=True):
        largest = max(abs(shown.obs_low), abs(shown.obs_high)) if agents.image is None else 1.0
        if not job.spec.model.normalise_observations and (largest > _LARGE or 0 < largest < _SMALL):
            how = "set model.normalise_observations: true" if job.spec.algorithm.normalises else ""
            yield (
                f"class {agents.name} observes numbers from {shown.obs_low:g} to {shown.obs_high:g}; nets learn best "
                f"from numbers near 1, so {how}{', or ' if how else ''}scale them in the environment"
            )
        if seen.env_steps and shown.constant == agents.obs_size:
            yield f"class {agents.name} observed the same numbers in every step, so its agents cannot tell states apart"
    if stuck := [agent for agent, shown in zip(job.spaces.agents, seen.agents, strict=True) if shown.without_choice]:
        yield (
            f"the mask of {some_of(stuck)} allowed no action at times, and the first one is taken then; if the mask "
            "marks illegal actions, say so (inverted: true in env.mask), else make an action legal that does nothing"
        )
    if not seen.repeats:
        carried = ", and actors.episodes: carried may fail; set actors.episodes: fresh"
        yield (
            "equal seeds and actions gave other observations or rewards: the environment is not deterministic under "
            f"its seed, so a run cannot be repeated{'' if job.spec.actors.episodes == 'fresh' else carried}"
        )


def _reward_warnings(job: PreparedJob, seen: Trial) -> Iterator[str]:
    idle = [name for name, agent in zip(job.spaces.agents, seen.agents, strict=True) if not agent.steps]
    if idle and seen.env_steps:  # a first reset may take all of the time
        yield f"{some_of(idle)} took no part in {seen.env_steps:,} random steps"
    same = all(agent.reward_low == agent.reward_high for agent in seen.agents)
    # As in CartPole: 1 for each step until the pole falls.
    paid_by_length = seen.shortest < seen.longest and any(agent.reward_low for agent in seen.agents)
    if seen.env_steps and same and not paid_by_length:
        values = sorted({agent.reward_low for agent in seen.agents if agent.steps})
        yield (
            f"the reward of each agent was the same in all of {seen.env_steps:,} random steps "
            f"({some_of([f'{each:g}' for each in values])}); if it stays so, there is nothing to learn"
        )
    rule = getattr(job.spec.algorithm, "credit_after_death", None)
    if seen.paid_after_death and rule is False:
        yield (
            "agents left episodes before their end, and their team had rewards later; if an action that costs an agent "
            "its life may earn them, set algorithm.credit_after_death (docs/algorithms.md)"
        )


def _show(job: PreparedJob, seen: Trial) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    spaces = job.spaces
    classes = []
    for each, shown in zip(spaces.classes, seen.classes, strict=True):
        choice = f"; {shown.legal:.0%} of the actions legal on average" if shown.legal < 1 else ""
        observed = f"{_spaces_of(each)}; observed {shown.obs_low:.3g} to {shown.obs_high:.3g}{choice}"
        classes += [(f"class {each.name}", some_of(each.agents)), ("", observed)]
    for name, text in (
        ("environment", job.spec.env.name),
        *classes,
        ("masks", _masks(job)),
        ("global state", _count(spaces.state_size, "number") if spaces.state_size else spaces.no_state or "none"),
        ("rewards", _rewards(job)),
        ("", _seen_rewards(job, seen)),
        ("ends", _ends(job)),
        ("", _seen_ends(seen)),
        ("memory", _memory(job)),
        ("training", _training(job)),
    ):
        table.add_row(name, harmless(text))
    console().print(table)


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def _spaces_of(agents: AgentClass) -> str:
    def end(bound: float) -> str:
        return ("-" if bound < 0 else "") + "∞" if isinf(bound) else f"{bound:g}"

    action = agents.action
    actions = _count(action.n, "action")
    if bounds := list(zip(getattr(action, "low", ()), getattr(action, "high", ()), strict=True)):
        shown = some_of(list(dict.fromkeys(f"{end(low)} to {end(high)}" for low, high in bounds)))
        actions = f"{_count(action.n, 'continuous action')}, {shown}"
    seen = _count(agents.obs_size, "number")
    if agents.image is not None:
        seen = f"images of {' · '.join(map(str, agents.image))}"
    return f"{seen} observed, {actions}"


def _masks(job: PreparedJob) -> str:
    if not job.spaces.masks:
        return "every action is always legal"
    return f"masks of legal actions: {job.spaces.masked_by}" if job.spaces.masked_by else "some actions may be illegal"


def _rewards(job: PreparedJob) -> str:
    spaces = job.spaces
    kind = {"unknown": "each agent has its own reward", "cooperative": "rewards of one team"}.get(
        spaces.rewards, "rewards of rivals"
    )
    return kind + (", and one of the team" if spaces.team_reward else "")


def _seen_rewards(job: PreparedJob, seen: Trial) -> str:
    if seen.common_reward and len(seen.agents) > 1:
        first = seen.agents[0]
        return f"seen: the same for all agents, {first.reward_low:.3g} to {first.reward_high:.3g} a step"
    each = [
        f"{name} {agent.reward_low:.3g} to {agent.reward_high:.3g}"
        for name, agent in zip(job.spaces.agents, seen.agents, strict=True)
    ]
    return f"seen a step: {some_of(each)}"


def _ends(job: PreparedJob) -> str:
    spaces = job.spaces
    limit = (
        "episodes of unknown length" if spaces.max_steps is None else f"episodes of up to {spaces.max_steps:,} steps"
    )
    return f"{limit}, {'agents may leave before the end' if spaces.deaths else 'all agents stay to the end'}"


def _seen_ends(seen: Trial) -> str:
    if not seen.episodes:
        return f"seen: no end within {seen.env_steps:,} random steps"
    shortest = f"{seen.shortest:,} to " if seen.shortest < seen.longest else ""
    played = f"{_count(seen.episodes, 'episode')} of {shortest}{_count(seen.longest, 'step')}"
    left = sum(agent.left_early for agent in seen.agents)
    early = f"; agents left before the end {_count(left, 'time')}" if left else ""
    return f"seen: {played}, {seen.truncated:,} cut by a time limit{early}"


def _memory(job: PreparedJob) -> str:
    """What policies remember from step to step, and the bytes that an actor uploads."""
    from marless.jobs.job import schema_of

    actions = max(each.action.n for each in job.spaces.classes)
    units = job.spec.algorithm.memory(job.spec.nets, actions)
    upload = schema_of(job.spec, job.spaces).bytes_with(0)
    remembered = f"policies remember {_count(units, 'number')}" if units else "policies remember nothing"
    return f"{remembered}; an actor uploads {upload / _MIB:,.1f} MiB a round"


def _training(job: PreparedJob) -> str:
    from marless.jobs.sharing.base import initial_groups

    spec, actors = job.spec, job.spec.actors
    groups = initial_groups(spec.sharing.groups, job.spaces)
    env_steps = actors.count * actors.envs * actors.steps
    return (
        f"{spec.algorithm.name} trains {_count(len(groups), 'policy', 'policies')}; {_count(actors.count, 'actor')} · "
        f"{actors.envs} copies · {actors.steps} steps = {env_steps:,} env steps a round, episodes {actors.episodes}"
    )


def _document(job: PreparedJob, seen: Trial, notes: Sequence[str]) -> dict[str, Any]:  # Any: JSON
    spaces = asdict(job.spaces)
    for each in spaces["classes"]:  # JSON has no infinite numbers
        bounds = ("low", "high") if "low" in each["action"] else ()
        each["action"] |= {name: [None if isinf(end) else end for end in each["action"][name]] for name in bounds}
    return {
        "job": job.spec.name,
        "env": job.spec.env.name,
        **spaces,
        "can_be_saved": job.can_be_saved,
        "seen": asdict(seen),
        "notes": list(notes),
    }
