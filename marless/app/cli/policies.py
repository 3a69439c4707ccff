"""Commands for trained policies: `evaluate`, `export` and `card`. They read run folders or files, without services."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marless.app.cli.options import RUNS, Output, OutputOption, RunsOption, job_ids, positive, whole
from marless.app.cli.output import console, data, harmless, number, percent, say, show_object
from marless.app.cli.working import Working
from marless.core import documents
from marless.core.errors import SpecError, UnavailableError, denied
from marless.storage.places import is_address

if TYPE_CHECKING:
    from marless.learning.data.returns import EpisodeReturns
    from marless.learning.policies.evaluation import TeamEvaluation
    from marless.learning.policies.team import Team
    from marless.storage.checkpoint import WhichRound

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB_OR_PATH",
        help="Job id, run folder, checkpoint, or exported file; or one of these in a bucket, s3://bucket/prefix.",
        autocompletion=job_ids,
    ),
]


def _round(given: str | int) -> int | str:
    """Parse the number of a round, or "best"; raises BadParameter."""
    if given == "best" or isinstance(given, int):
        return given
    if not given.strip()[:1].isdigit():
        raise typer.BadParameter(f"{given!r} is neither a number of rounds, such as 50, nor best")
    return positive(given)


RoundOption = Annotated[
    Any,  # Any: `WhichRound`, which typer cannot take
    typer.Option(
        "--round",
        parser=_round,
        metavar="N|best",
        help="The checkpoint after this round, or the one that was evaluated best; default: the newest.",
    ),
]


def evaluate(  # noqa: PLR0913, PLR0917  # a command has as many parameters as options
    source: SourceArgument,
    round_: RoundOption = None,
    episodes: Annotated[int, typer.Option(parser=positive, metavar="N", help="Number of episodes.")] = 100,
    seed: Annotated[
        int, typer.Option(parser=whole, metavar="N", help="Seed of the episodes and of random actions.")
    ] = 0,
    explore: Annotated[bool, typer.Option("--explore", help="Sample actions as in training; default: greedy.")] = False,
    env: Annotated[str, typer.Option(help="Environment to play in; default: that of training.")] = "",
    env_option: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="Set an option of the environment.")] = [],  # noqa: B006  # typer's way
    render: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Film one episode, with this seed, as .gif or .png.")
    ] = None,
    limit_s: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Give up if no episode ends for so long.")
    ] = 60.0,
    runs: RunsOption = RUNS,
    output: OutputOption = Output.table,
) -> None:
    """Evaluate trained policies on this machine, beside the random policy; print returns per agent and episode."""
    from marless.learning.policies import evaluation, film
    from marless.storage.saved_policies import reported

    options = _options(env_option)
    if render:
        film.check(render)
    with _disk(), _here(source, round_, reported=True) as place:
        team = _loaded(place, round_, runs)
        with Working("playing", "episodes") as working:
            played = evaluation.evaluate(
                team,
                env or None,
                options,
                episodes=episodes,
                seed=seed,
                explore=explore,
                told=working.told,
                limit_s=limit_s,
            )
        before = reported(team.origin) or _told(team)
        if render:
            with Working("filming one episode"):
                pictures = film.film(team, render, env or None, options, seed=seed, explore=explore)
            cut = f" (its first {film.MOST_STEPS:,} steps)" if pictures > film.MOST_STEPS else ""
            say(f"filmed one episode{cut}: {render}, {pictures} pictures")
    if output is Output.table:
        _show(played, before)
    else:
        about = {"source": source, "job": team.origin.job, "round": team.origin.round, "env": env or team.origin.env}
        settings = {"episodes": episodes, "seed": seed, "explore": explore}
        show_object(about | settings | _fields(played, before), team.origin.job or source, output)


def export(
    source: SourceArgument,
    to: Annotated[
        str,
        typer.Option("--to", metavar="FILE", help="The file, or s3://bucket/key; default: the job's, JOB.safetensors."),
    ] = "",
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write an ONNX graph, JOB.onnx, which runs without marless.")
    ] = False,
    policy: Annotated[str, typer.Option(help="Only this policy; default: the whole team.")] = "",
    round_: RoundOption = None,
    runs: RunsOption = RUNS,
) -> None:
    """Write a team to a single file, with a card of how it was trained; print the file's path.

    `marless.load_policy`, `marless evaluate` and `marless card` read it. A name that ends with .onnx asks for --onnx.
    """
    from marless.learning.policies.onnx_file import SUFFIX

    with _disk(), Working(f"exporting {source}"), _here(source, round_, reported=True) as place:
        team = _loaded(place, round_, runs)
        job = team.origin.job or Path(place).stem
        to = to or f"{job}{f'-{policy}' if policy else ''}{SUFFIX if onnx else '.safetensors'}"
        if onnx and not to.endswith(SUFFIX):
            raise SpecError(f"--to {to}: the name of an ONNX file ends with {SUFFIX}; or leave --onnx out")
        if is_address(to):
            _export_to_bucket(team, policy, to)
        else:
            _write(team, policy, Path(to))
    data(to)


def card(source: SourceArgument, round_: RoundOption = None, runs: RunsOption = RUNS) -> None:
    """Print how a team was trained, its returns and its cost as Markdown, to be published with its file."""
    from marless.app.cli.card import card_of, markdown

    with _disk(), Working(f"reading {source}"), _here(source, round_, reported=True) as place:
        team = _loaded(place, round_, runs)
        found = card_of(team)
    if found is None:
        raise SpecError(
            f"{source} does not say how it was trained; give a job, its run folder, or a team of marless export"
        )
    data(harmless(markdown(found, team)))


def _write(team: Team, policy: str, to: Path) -> None:
    from marless.app.cli.card import card_of

    if policy:
        team.export(policy, to)
    else:
        found = card_of(team)
        team.save(to, dataclasses.asdict(found) if found else {})


def _told(team: Team) -> EpisodeReturns | None:
    """The greedy evaluation of these policies that the card in their file tells."""
    from marless.app.cli.card import card_of

    found = card_of(team) if team.card else None
    greedy = found.evaluation if found else None
    return greedy.returns if greedy and greedy.rounds == team.origin.round else None


@contextmanager
def _here(source: str, round_: WhichRound, *, reported: bool = False) -> Iterator[str]:
    """Yields `source`, or the path of a copy of what it names in a bucket: with `reported`, including the records."""
    if not is_address(source):
        yield source
        return
    from marless.storage.bucket import reading

    with reading.local_copy(source, reading.checkpoint(round_, acting_only=True, with_records=reported)) as copy:
        yield str(copy)


def _export_to_bucket(team: Team, policy: str, to: str) -> None:
    from marless.storage import places
    from marless.storage.bucket.objects import S3Objects

    place = places.parse(to)
    if not place.prefix:
        raise SpecError(f"--to {to}: name the object, s3://{place.bucket}/team.safetensors")
    with tempfile.TemporaryDirectory(prefix="marless-") as directory:
        file = Path(directory, "policy").with_suffix(Path(to).suffix)  # which tells the kind
        _write(team, policy, file)
        S3Objects(place.bucket).send(place.prefix, file)


def _loaded(source: str, round_: WhichRound, runs: Path) -> Team:
    """Load policies with `load_policy`, and print its warnings."""
    from marless import load_policy

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        team = load_policy(source, round=round_, runs=runs)
    for warning in caught:
        say(str(warning.message))
    return team


def _options(given: Sequence[str]) -> dict[str, object]:
    options = {}
    for each in given:
        name, separator, text = each.partition("=")
        if not separator or not name:
            raise SpecError(f"--env-option {each!r}: write it as name=value")
        try:
            options[name] = documents.yaml_of(text, name)
        except SpecError:
            raise SpecError(f"--env-option {each!r}: {text!r} is not a YAML value") from None
    return options


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(denied(error)) from None


def _fields(played: TeamEvaluation, before: EpisodeReturns | None) -> dict[str, object]:
    team, chance = played.team.returns, played.chance.returns
    return {
        "return": team.mean,
        "standard_error": team.standard_error,
        "return_per_agent": dict(team.per_agent),
        "standard_error_per_agent": dict(played.team.standard_errors),
        "random_return": chance.mean,
        "random_standard_error": chance.standard_error,
        "random_return_per_agent": dict(chance.per_agent),
        "reported_return": before and before.mean,
        "reported_standard_error": before and before.standard_error,
        "reported_return_per_agent": before and dict(before.per_agent),
        "win_rate": team.win_rate,
        "random_win_rate": chance.win_rate,
        "reported_win_rate": before and before.win_rate,
    }


def _show(played: TeamEvaluation, before: EpisodeReturns | None) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("agent")
    for title in ("return", "random", "reported"):
        table.add_column(title, justify="right")
    for agent in played.team.returns.per_agent:
        scores = (
            number(each.returns.per_agent[agent], each.standard_errors[agent]) for each in (played.team, played.chance)
        )
        table.add_row(agent, *scores, number(before.per_agent[agent]) if before else "")
    columns = (played.team.returns, played.chance.returns, before)
    means = [number(returns.mean, returns.standard_error) if returns else "" for returns in columns]
    table.add_row("mean", *means, style="bold")
    if played.team.returns.win_rate is not None:
        table.add_row("won", *(percent(returns.win_rate) if returns else "" for returns in columns), style="bold")
    console().print(table)
