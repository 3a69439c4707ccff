"""Command-line options of the learner pool."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marless.fleet.launchers.registry import LOCAL, Choice, add_launcher, limit_of
from marless.rpc.process import add_option, add_peer, add_worker_tls, at_least, seconds
from marless.rpc.server import ServerOptions, option_parser, server_options
from marless.services.learner_pool import spool


@dataclass(frozen=True)
class LearnerPoolConfig:
    """All options of the learner pool."""

    server: ServerOptions
    param_store: str
    """Address of the param_store, handed to workers."""
    workers: int
    """Maximum number of learner workers, which share the CPU cores."""
    threads: int
    """Torch threads per worker."""
    warm: int
    """Workers that are started with the pool."""
    keep_alive_s: float
    """Seconds after which an idle worker is stopped."""
    spool: Path
    """Directory of trajectories that wait for their update, and of replay files; memory-backed if possible."""
    spool_bytes: int
    """Total size of trajectories and replay files; uploads beyond it wait or are refused."""
    replay_keep_s: float = 86400.0
    """Seconds after which unused replay files are removed, unless their job is open."""
    worker_tls: tuple[str, str] = ("", "")
    """Paths of the workers' certificate chain and its key; "": those of the pool."""
    workers_per_gpu: int = 0
    """Workers that share a GPU, and its memory evenly; 0: as many as their number needs."""
    launcher: Choice = LOCAL
    """What starts the workers."""


def parse(argv: Sequence[str] | None = None) -> LearnerPoolConfig:
    """Read the options from flags and MARLESS_* environment variables."""
    cores = os.cpu_count() or 1
    parser = option_parser("learner_pool", "Takes trajectories in and turns them into new policy versions.")
    add_peer(parser, "--param-store", "param_store")
    add_option(parser, "--learner-workers", "1", "largest number of learner workers that the pool starts", at_least(0))
    add_option(parser, "--learner-threads", "0", "torch threads per worker; 0: the cores, shared evenly", at_least(0))
    what = "workers that share a GPU, and its memory evenly; 0: as many as their number needs"
    add_option(parser, "--workers-per-gpu", "0", what, at_least(0))
    add_option(
        parser, "--warm-workers", "0", "workers that are started with the pool, before a task needs them", at_least(0)
    )
    add_option(parser, "--keep-alive-s", "600", "seconds after which an idle worker is stopped", seconds)
    add_option(parser, "--spool", spool.memory_backed(), "directory for waiting trajectories and for replays")
    add_option(
        parser, "--spool-bytes", str(2 * 2**30), "largest total size of waiting trajectories and replays", at_least(1)
    )
    add_option(parser, "--replay-keep-s", "86400", "seconds after which an unused replay is removed", seconds)
    add_launcher(parser)
    add_worker_tls(parser)
    args = parser.parse_args(argv)
    server = server_options(args)
    return LearnerPoolConfig(
        server=server,
        param_store=args.param_store,
        workers=limit_of(parser, args.launcher, args.learner_workers, server.security),
        workers_per_gpu=args.workers_per_gpu,
        threads=args.learner_threads or max(1, cores // max(1, args.learner_workers)),
        warm=args.warm_workers,
        keep_alive_s=args.keep_alive_s,
        spool=Path(args.spool),
        spool_bytes=args.spool_bytes,
        replay_keep_s=args.replay_keep_s,
        worker_tls=(args.worker_tls_cert, args.worker_tls_key),
        launcher=args.launcher,
    )
