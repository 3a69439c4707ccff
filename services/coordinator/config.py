"""Command-line options of the coordinator."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marless.core.errors import SpecError
from marless.rpc.process import add_env_modules, add_option, add_peer, at_least, seconds
from marless.rpc.server import ServerOptions, option_parser, server_options
from marless.services.coordinator.jobs.jobs import JobsOptions
from marless.services.coordinator.state.ownership import BEAT_S
from marless.storage import places
from marless.storage.places import Address, is_address

LEAST_BEATS = 2
PEERS = ("actor_pool", "learner_pool", "param_store")


@dataclass(frozen=True)
class CoordinatorConfig:
    """All options of the coordinator."""

    server: ServerOptions
    peers: Mapping[str, str]
    """Address of each other service, by name."""
    runs: Path
    """The directory that holds one run folder per job, or their working copies."""
    jobs: JobsOptions
    env_modules: tuple[str, ...] = ()
    """Modules whose environments jobs may use in addition to PettingZoo's own; see `marless.learning.envs.allowed`."""
    bucket: Address | None = None
    """Where the run folders are kept, if that is in a bucket."""


def parse(argv: Sequence[str] | None = None) -> CoordinatorConfig:
    """Read the options from flags and MARLESS_* environment variables."""
    usual = JobsOptions()
    parser = option_parser(
        "coordinator", "Owns jobs and decisions: runs rounds, records them, streams events.", for_users=True
    )
    for service in PEERS:
        add_peer(parser, f"--{service.replace('_', '-')}", service)
    add_option(parser, "--runs", "runs", "directory of the run folders, or s3://bucket/prefix")
    add_option(
        parser,
        "--working-copies",
        "",
        "directory of the working copies, with --runs s3://...; default: in ~/.cache/marless",
    )
    add_option(
        parser,
        "--running-jobs",
        str(usual.running),
        "largest number of jobs that run at once; others wait",
        at_least(1),
    )
    add_option(
        parser,
        "--lease-s",
        f"{usual.lease_s:g}",
        "seconds without a sign of life after which the jobs of a coordinator are taken over",
        _lease_s,
    )
    add_option(
        parser, "--patience-s", f"{usual.patience_s:g}", "seconds that a job waits for a service that is down", seconds
    )
    add_option(
        parser,
        "--uploads-bytes",
        str(usual.uploads_bytes),
        "largest total size of uploaded checkpoints that no job has used yet",
        at_least(1),
    )
    add_option(parser, "--only", "", "continue this job only, also if it is attached; default: all jobs of --runs")
    add_env_modules(parser)
    args = parser.parse_args(argv)
    try:
        bucket = places.parse(args.runs) if is_address(args.runs) else None
    except SpecError as error:
        parser.error(f"argument --runs: {error}")
    return CoordinatorConfig(
        server=server_options(args),
        peers={service: getattr(args, service) for service in PEERS},
        runs=_working_copies(bucket, args.working_copies) if bucket else Path(args.runs),
        bucket=bucket,
        env_modules=args.env_modules,
        jobs=JobsOptions(
            running=args.running_jobs,
            lease_s=args.lease_s,
            patience_s=args.patience_s,
            uploads_bytes=args.uploads_bytes,
            only=args.only,
        ),
    )


def _working_copies(bucket: Address, directory: str) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marless"
    return Path(directory or home) / bucket.bucket / bucket.prefix


def _lease_s(text: str) -> float:
    value = seconds(text)
    if value < LEAST_BEATS * BEAT_S:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give at least {LEAST_BEATS * BEAT_S:g}, because a sign of life is written twice a second"
        )
    return value
