"""Turbulent flows from which episodes start: made once for each Reynolds number, and kept on disk.

A file is in $XDG_CACHE_HOME/marless/wall_model (by default ~/.cache), in a directory that only this user may write to.
Its name has two parts: a digest of all that the flows depend on, and a checksum of its content, so that a file which a
power failure or a full disk has damaged is not read, but made anew. Of several processes that need the same flows, one
makes them, and the others wait for it. To remove the directory is safe.

The kernel that computes the flows is a part of the digest, because compiled code rounds otherwise than NumPy: with one
kernel on one machine, flows that are made anew are the same, bit for bit; with another kernel they are others, under
another name. So an episode that goes on on another machine is the same wherever the kernels are.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from marless.core import private_files, regular_files
from marless.core.errors import CorruptError, MarlessError, SpecError
from marless_wall_model.channel import Channel
from marless_wall_model.equilibrium import bulk_velocity
from marless_wall_model.grid import Grid
from marless_wall_model.kernel import library
from marless_wall_model.options import WallModelOptions
from marless_wall_model.start import perturbed, spin_up

Snapshot = Mapping[str, NDArray[np.generic]]
"""The arrays of a channel."""
FORMAT = 1
"""To be raised when the solver computes other flows from the same numbers."""
MOST_BLOWN_UP = 8
"""Flows that have blown up which are kept; the oldest are removed."""
_MOST_BYTES = 2**32


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that the snapshots of one Reynolds number depend on."""

    grid: Grid
    subgrid: str
    re_tau: float
    seed: int
    spin_up: float
    apart: float
    count: int
    kernel: str
    """The kernel that computes them, as `kernel_in_use` says."""

    @classmethod
    def of(cls, options: WallModelOptions, re_tau: float) -> Recipe:
        """The snapshots of an environment at one of its Reynolds numbers."""
        return cls(
            grid=options.geometry,
            subgrid=options.subgrid,
            re_tau=float(re_tau),
            seed=options.snapshot_seed,
            spin_up=float(options.spin_up),
            apart=float(options.apart),
            count=options.snapshots,
            kernel=kernel_in_use(),
        )

    @property
    def digest(self) -> str:
        """The first part of the file's name."""
        return hashlib.sha256(repr((FORMAT, sorted(asdict(self).items()))).encode()).hexdigest()[:32]

    def channel(self) -> Channel:
        """A channel of this kind; raises SpecError."""
        return Channel(self.grid, 1.0 / self.re_tau, bulk_velocity(self.re_tau), subgrid=self.subgrid)

    def make(self) -> list[Snapshot]:
        """Compute the flows, which takes seconds on small grids and minutes on large ones; raises SpecError."""
        channel = self.channel()
        perturbed(channel, np.random.default_rng(self.seed))
        flows: list[Snapshot] = []
        for duration in (self.spin_up, *[self.apart] * (self.count - 1)):
            spin_up(channel, duration)
            if channel.blown_up:
                raise SpecError(
                    f"the flow at Re_τ {self.re_tau:g} blows up on the grid {self.grid.nx} · {self.grid.ny} · "
                    f"{self.grid.nz} before its first episode; choose a finer grid, or the subgrid model amd"
                )
            flows.append(channel.arrays())
        return flows


@cache
def kernel_in_use() -> str:
    """What decides how a flow is rounded: the compiled kernel, by its source, options and CPU, or none; and NumPy."""
    loaded = library()
    # The name of a compiled file begins with a digest of these.
    kernel = "no kernel" if loaded is None else Path(loaded._name).name.partition("-")[0]
    return f"{kernel}, numpy {np.__version__}"


def snapshots_of(recipe: Recipe) -> list[Snapshot]:
    """The flows of a recipe: read from the cache, or made and kept there; raises SpecError.

    Without a cache, as where there is no home directory or the disk is full, they are made for this process alone.
    """
    try:
        directory = private_files.directory(cache_directory())
        with _locked(directory / f"{recipe.digest}.lock"):
            return _read(directory, recipe) or _keep(directory, recipe, _made(recipe))
    except OSError as error:
        _say_not_kept(error)
        return _made(recipe)


def cache_directory() -> Path:
    """Where snapshots are kept; raises FileNotFoundError if this user has no directory for caches."""
    return private_files.caches() / "marless" / "wall_model"


def removed(recipe: Recipe) -> bool:
    """Remove the flows of a recipe from the cache; returns whether there were any. Raises OSError."""
    directory = private_files.directory(cache_directory())
    with _locked(directory / f"{recipe.digest}.lock"):
        found = list(directory.glob(f"{recipe.digest}-*.safetensors"))
        for path in found:
            path.unlink()
    return bool(found)


def _made(recipe: Recipe) -> list[Snapshot]:
    grid, started_s = recipe.grid, time.monotonic()
    about = {"re_tau": recipe.re_tau, "grid": [grid.nx, grid.ny, grid.nz], "kernel": recipe.kernel}
    log("snapshots.making", **about, count=recipe.count, until=recipe.spin_up + (recipe.count - 1) * recipe.apart)
    flows = recipe.make()
    log("snapshots.made", **about, took_s=round(time.monotonic() - started_s, 1))
    return flows


def _read(directory: Path, recipe: Recipe) -> list[Snapshot] | None:
    """The flows of the file whose content matches its name; one that is damaged is removed."""
    for path in directory.glob(f"{recipe.digest}-*.safetensors"):
        try:
            content = regular_files.read(path, _MOST_BYTES)
            if path.name != _name(recipe, content):
                raise CorruptError(f"{path}: its content does not match its checksum")
            return _parted(safetensors.load(content), recipe.count)
        except (MarlessError, SafetensorError) as error:
            log("snapshots.damaged", reason=str(error), help="it is removed, and the flows are made anew")
            path.unlink(missing_ok=True)
    return None


def _keep(directory: Path, recipe: Recipe, flows: list[Snapshot]) -> list[Snapshot]:
    content = safetensors.save({name: np.stack([flow[name] for flow in flows]) for name in flows[0]})
    try:
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            made = Path(folder, "flows")
            made.write_bytes(content)
            made.rename(directory / _name(recipe, content))  # another process finds a whole file or none
    except OSError as error:
        _say_not_kept(error)
    return flows


def _say_not_kept(error: OSError) -> None:
    log("snapshots.not_kept", reason=str(error), help="set XDG_CACHE_HOME to a directory that can be written to")


def _name(recipe: Recipe, content: bytes) -> str:
    return f"{recipe.digest}-{hashlib.sha256(content).hexdigest()[:32]}.safetensors"


def _parted(arrays: Snapshot, count: int) -> list[Snapshot]:
    return [{name: array[number] for name, array in arrays.items()} for number in range(count)]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, so that whoever dies while it makes flows keeps nobody waiting."""
    descriptor = private_files.open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def keep_blown_up(flow: Snapshot, about: Mapping[str, object]) -> Path | None:
    """Keep the state of a flow that has blown up, for looking at, beside the newest ones before it.

    `about` is text of the file. Returns its path, or None if it cannot be written, which ends no training.
    """
    content = safetensors.save(dict(flow), {name: str(value) for name, value in about.items()})
    try:
        directory = private_files.directory(cache_directory() / "blown_up")
        path = directory / f"{hashlib.sha256(content).hexdigest()[:32]}.safetensors"
        path.write_bytes(content)
        for old in sorted(directory.iterdir(), key=lambda each: each.stat().st_mtime_ns)[:-MOST_BLOWN_UP]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return path


def log(event: str, **about: object) -> None:
    """Write a line to the log of this process."""
    from marless.core.log import structlog  # here, because the library does without it

    structlog.get_logger("marless.wall_model").info(event, **about)
