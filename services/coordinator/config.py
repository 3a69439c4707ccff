"""Options of the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marless.rpc.process import add_option
from marless.rpc.server import ServerOptions, option_parser, server_options


@dataclass(frozen=True)
class Config:
    """What the coordinator is told."""

    server: ServerOptions
    actor_pool: str
    learner_pool: str
    """Also the address that actors send their trajectories to."""
    param_store: str
    runs: Path
    """Run folders are made here, one a job."""


def parse(argv: Sequence[str] | None = None) -> Config:
    """Read flags and MARLESS_* variables."""
    parser = option_parser("coordinator", "Owns jobs and decisions: runs rounds, records them, streams events.")
    for service in ("actor-pool", "learner-pool", "param-store"):
        add_option(parser, f"--{service}", "", f"address of the {service.replace('-', '_')}")
    add_option(parser, "--runs", "runs", "directory of the run folders")
    args = parser.parse_args(argv)
    return Config(server_options(args), args.actor_pool, args.learner_pool, args.param_store, Path(args.runs))
