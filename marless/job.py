"""A job made ready: a spec checked against its environment, with its decision policies built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from marless.algos import registry as algorithms
from marless.envs import registry as environments
from marless.envs.base import EnvSpaces
from marless.errors import SpecError
from marless.scaling.base import ActorScaling, FixedScaling
from marless.sharing.base import FixedSharing, Sharing, initial_groups
from marless.spec import JobSpec

_JOB_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?")


@dataclass(frozen=True)
class Job:
    """Everything the coordinator needs to run a job, but no tensor."""

    spec: JobSpec
    spaces: EnvSpaces
    with_state: bool
    """Trajectories carry the global state."""
    scaling: ActorScaling
    sharing: Sharing


def prepare(spec: JobSpec) -> Job:
    """Make the environment once to learn its spaces, and refuse what cannot work; raises SpecError."""
    with _section("env"):
        spaces = environments.spaces(spec.env.name, spec.env.options)
    algorithm = algorithms.algorithm(spec.algorithm.name)
    with _section("algorithm"):
        algorithm.check(spec.algorithm, spaces)
    return Job(
        spec=spec,
        spaces=spaces,
        with_state=algorithm.needs_state(spec.algorithm),
        scaling=FixedScaling(spec.actors.count),
        sharing=FixedSharing(initial_groups(spec.sharing.groups, spaces)),
    )


def check_id(job_id: str) -> None:
    """Refuse a job id that cannot name a folder and keys; raises SpecError."""
    if not _JOB_ID.fullmatch(job_id):
        raise SpecError(f"job id {job_id!r}: use lower-case letters, digits and dashes, at most 100")


@contextmanager
def _section(name: str) -> Iterator[None]:
    """Say which section of the spec a mistake is in."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from error
