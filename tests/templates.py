"""Templates of workers that the pools of a test session share, where tests start pools in their own process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from marless.core import process_environment
from marless.fleet.launchers.base import Launcher, Options, WorkerProgram
from marless.fleet.launchers.forking import TemplateProcess
from marless.fleet.launchers.local import LocalLauncher

SCRIPTED = Path(__file__).parent / "faults" / "witness"
"""Modules with scripted policies and environments, and the entry points that name them."""
LONGEST = ("x" * 2000,)
"""As long as the arguments of the workers of any test."""


@dataclass(frozen=True)
class Templates:
    """One of each kind of worker; each starts when it is first used."""

    actors: TemplateProcess
    learners: TemplateProcess

    def actor_launcher(self, program: WorkerProgram, _options: Options) -> Launcher:
        """Makes a launcher of actor workers."""
        return LocalLauncher(program, shared=self.actors)

    def learner_launcher(self, program: WorkerProgram, _options: Options) -> Launcher:
        """Makes a launcher of learner workers."""
        return LocalLauncher(program, shared=self.learners)


@contextmanager
def shared_templates(**variables: str) -> Iterator[Templates]:
    """Templates whose workers have these environment variables; they end with the context."""
    inherited = process_environment.inherited(os.environ) | variables
    templates = Templates(
        TemplateProcess("marless.services.actor_pool.worker", LONGEST, inherited | process_environment.ACTOR),
        TemplateProcess("marless.services.learner_pool.worker", LONGEST, inherited | process_environment.learner(1)),
    )
    yield templates
    templates.actors.end()
    templates.learners.end()
