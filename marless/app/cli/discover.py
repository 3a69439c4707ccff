"""Commands that say what a job can have, and write the first one: `envs`, `algorithms`, `settings` and `init`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marless.app.cli.options import Output, OutputOption, OverrideOption
from marless.app.cli.output import TableColumn, console, fitted, say, show_objects
from marless.core import documents
from marless.core.errors import SpecError, unknown_name

if TYPE_CHECKING:
    from marless.jobs.reference import SettingInfo
    from marless.jobs.spec import JobSpec

PLAIN = {"env": {"name": "mpe/simple_spread"}, "algorithm": {"name": "ippo"}, "stop": {"env_steps": 1_000_000}}
"""A job that gives what every job must give."""
FIRST = ("env", "algorithm", "model", "actors", "schedule", "scaling", "sharing", "evaluation", "stop")
"""Sections that a first job file shows, in this order; what else the job gives comes after them."""


def envs(
    part: Annotated[str, typer.Argument(metavar="[PART]", help="Only names that contain this.")] = "",
    output: OutputOption = Output.table,
) -> None:
    """List the environments that can be trained in, with their options."""
    from marless.learning.envs import registry

    rows = [(name, registry.options_of(name)) for name in registry.environments() if part in name]
    if not rows:
        raise SpecError(unknown_name("environment", part, registry.environments()))
    _show([{"environment": name, "options": options} for name, options in rows], output)


def algorithms(output: OutputOption = Output.table) -> None:
    """List the algorithms."""
    from marless.learning.algos.registry import ALGORITHMS, algorithm

    abouts = {name: (type(algorithm(name)).__doc__ or "").partition("\n")[0] for name in sorted(ALGORITHMS.names())}
    _show([{"algorithm": name, "about": about} for name, about in abouts.items()], output)


def settings(
    setting: Annotated[
        str, typer.Argument(metavar="[SETTING]", help="A setting or a section: algorithm.lr, actors.")
    ] = "",
    override: OverrideOption = [],  # noqa: B006  # typer's way
    output: OutputOption = Output.table,
) -> None:
    """List and explain the settings of a job, as job files and --set take them.

    They depend on what the job names: `--set algorithm=qmix --set schedule=stellaris`.
    """
    from marless.jobs import spec as specs

    every = _settings(specs.of_document(PLAIN, override, "--set"))
    chosen = [each for each in every if f"{each.path}.".startswith(f"{setting}.") or not setting]
    if not chosen:
        known = [each.path for each in every] + [each.path.rpartition(".")[0] for each in every]
        raise SpecError(unknown_name("setting", setting, dict.fromkeys(filter(None, known))))
    titles = ("setting", "value", "default", "meaning")
    _show([dict(zip(titles, vars(each).values(), strict=True)) for each in chosen], output)


def init(
    job: Annotated[
        str, typer.Argument(metavar="[NAME]", help="An example (spread), or an environment (mpe/simple_spread).")
    ] = "spread",
    to: Annotated[Path, typer.Option(metavar="FILE", help="The file to write; it must not exist.")] = Path("job.yaml"),
) -> None:
    """Write a job file that says what can be set, and what it means."""
    from marless.jobs import spec as specs

    document = specs.job_document(Path(job))
    spec = specs.of_document(document, [], job)
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(commented(document, spec, to))
    except OSError as error:
        raise SpecError(f"{to}: cannot be written ({error.strerror}); choose another file with --to") from None
    say(f"{to} written; `marless check {to}` says what it does, `marless train {to}` runs it")


def commented(document: Any, spec: JobSpec, to: Path) -> str:  # Any: YAML
    """A job file with what the document sets, and as comments what else its first sections can set."""
    lines = [
        f"# `marless train {to}` runs this job. Lines that begin with # show settings that can be changed, with their",
        "# defaults; `marless settings` lists all of them.",
        f"name: {spec.name}",
        f"seed: {spec.seed}",
    ]
    every = _settings(spec)
    for section in dict.fromkeys((*FIRST, *(name for name in document if name not in ("name", "seed")))):
        given = document.get(section, {})
        given = {"name": given} if isinstance(given, str) else given
        if isinstance(given, list):
            lines += ["", f"{section}: {documents.to_yaml_line(given)}"]
            continue
        lines += ["", f"{section}:" if given else f"# {section}:"]
        lines += _lines(section, given, [each for each in every if each.path.startswith(f"{section}.")])
    return "\n".join(lines) + "\n"


def _lines(section: str, given: Mapping[str, Any], settings: Sequence[SettingInfo]) -> Iterator[str]:
    """The lines of one section: what is given, then the rest as comments."""
    own = {each.path.removeprefix(f"{section}."): each for each in settings}
    names = [*given, *(name for name in own if name not in given and "." not in name)]
    for name in names:
        value = given.get(name, own[name].default if name in own else None)
        about = own[name].about if name in own else ""
        if name == "name" and section != "env":
            about = own[name].kind  # which others there are
        line = f"{name}: {documents.to_yaml_line(value)}"
        yield f"  {'' if name in given else '# '}{line}{f'  # {about}' if about else ''}"


def _settings(spec: JobSpec) -> Sequence[SettingInfo]:
    from marless.jobs.reference import settings_of  # here, because it imports what all settings are of

    return settings_of(spec)


def _show(rows: Sequence[Mapping[str, Any]], output: Output) -> None:  # Any: YAML
    if output is not Output.table:
        show_objects([(str(next(iter(row.values()))), row) for row in rows], output)
        return
    shown = console()
    titles = list(rows[0]) if rows else []
    columns = [TableColumn(title=title, cells=[_cell(row[title]) for row in rows]) for title in titles]
    shown.print(fitted(columns, shown.width))


def _cell(value: Any) -> str:  # Any: YAML
    return value if isinstance(value, str) else documents.to_yaml_line(value)
