"""Ray on this machine alone, for RLlib's runners."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import torch


@contextmanager
def local_ray(cpus: int, threads: int) -> Iterator[None]:
    """While the context lasts, Ray runs on loopback with free ports and a temporary folder.

    `threads` is how many torch uses, here and in each of Ray's workers.
    """
    torch.set_num_threads(threads)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0", OMP_NUM_THREADS=str(threads))
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        try:
            ray.init(
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                include_dashboard=False,
                num_cpus=cpus,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
            yield
        finally:
            ray.shutdown()
