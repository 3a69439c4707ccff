"""The commands `wall-model snapshots` and `wall-model baselines`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli.options import JobFileArgument, Output, OutputOption, OverrideOption, positive, whole
from marless.app.cli.output import console, for_data_alone, say, show_object
from marless.app.cli.working import Working
from marless.core.errors import SpecError, UnavailableError, denied

if TYPE_CHECKING:
    from marless_wall_model.options import WallModelOptions

app = typer.Typer(no_args_is_help=True, help="Turbulent channels whose wall stress is set by agents on the wall.")


@app.command()
@for_data_alone
def snapshots(
    job_file: JobFileArgument,
    *,
    anew: Annotated[bool, typer.Option("--anew", help="Make those anew that are there already.")] = False,
    overrides: OverrideOption = [],  # noqa: B006  # typer's way
    output: OutputOption = Output.table,
) -> None:
    """Make the flows from which the episodes of a job start, and keep them in ~/.cache/marless/wall_model."""
    from marless_wall_model import snapshots as kept

    options = _options(job_file, overrides)
    recipes = [kept.Recipe.of(options, re_tau) for re_tau in options.re_tau]
    with Working("making flows", "Reynolds numbers") as working:
        for number, recipe in enumerate(recipes):
            try:
                if anew:
                    kept.removed(recipe)
                kept.snapshots_of(recipe)
            except OSError as error:
                raise UnavailableError(f"{kept.cache_directory()}: {denied(error)}") from None
            working.told(number + 1, len(recipes))
    found = {f"{recipe.re_tau:g}": recipe.digest for recipe in recipes}
    text = f"{options.snapshots} flows for each Re_τ of {', '.join(found)} are in {kept.cache_directory()}"
    if output is Output.table:
        say(text)
    else:
        show_object({"directory": str(kept.cache_directory()), "snapshots": found}, text, output)


@app.command()
@for_data_alone
def baselines(
    job_file: JobFileArgument,
    *,
    episodes: Annotated[int, typer.Option(parser=positive, metavar="N", help="Episodes of each controller.")] = 8,
    seed: Annotated[int, typer.Option(parser=whole, metavar="N", help="Seed of the episodes.")] = 999,
    overrides: OverrideOption = [],  # noqa: B006
    output: OutputOption = Output.table,
) -> None:
    """Play episodes of a job with controllers that do not learn: no change, random changes, the logarithmic law."""
    import numpy as np

    from marless_wall_model.controllers import CONTROLLERS, episode_returns
    from marless_wall_model.env import WallModel

    env = WallModel("llwm", _options(job_file, overrides), min(episodes, 4))
    with Working("playing", "controllers") as working:
        returns = {}
        for number, (name, controller) in enumerate(CONTROLLERS.items()):
            returns[name] = episode_returns(env, controller, episodes, seed)
            working.told(number + 1, len(CONTROLLERS))
    means = {name: float(np.mean(each)) for name, each in returns.items()}
    if output is not Output.table:
        show_object({"episodes": episodes, "returns": returns, "means": means}, str(means), output)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("controller")
    table.add_column("return of an agent", justify="right")
    for name, mean in means.items():
        table.add_row(name, f"{mean:.3f}")
    console().print(table)


def _options(path: Path, overrides: list[str]) -> WallModelOptions:
    """The options of the environment of a job; raises SpecError if it is none of the wall model."""
    from marless.jobs import spec as specs
    from marless.learning.envs.registry import read_options
    from marless_wall_model.options import WallModelOptions

    job = specs.load(path, overrides)
    if not job.env.name.startswith("wall_model/"):
        raise SpecError(
            f"{path}: its environment is {job.env.name}; give a job whose environment is wall_model/llwm or vwm"
        )
    try:
        return read_options(WallModelOptions, job.env.options)
    except SpecError as error:
        raise SpecError(f"{path}: environment {job.env.name}: {error}") from None
