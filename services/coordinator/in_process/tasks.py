"""One task of an actor: what it plays under which policies, and what comes of it; and the messages by which a process
and its workers pass tasks and results over a socket: JSON, bytes, and arrays in shared memory.

A trajectory is written into anonymous memory, whose descriptor is sent: nobody copies it on the way.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import resource
import socket
import struct
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import MarlessError
from marless.core.stopwatch import Stopwatch
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.player import EnvKey, Mode, Player, actor_seed
from marless.learning.data.returns import PlayLimits, batches
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.nets.acting import Acting

HERE = "in-process"
"""The name of this process as a worker, in records."""


@dataclass(frozen=True, kw_only=True)
class ActorTask:
    """What one actor is to do; plain values only, so that it can be sent to another process as JSON."""

    job: str
    mode: Mode
    round: int
    index: int
    env: EnvKey
    seed: int
    """The job's."""
    acting: Mapping[str, tuple[str, int]]
    """Policy and version by agent; {} to act at random."""
    steps: int = 0
    """Time steps of a rollout."""
    digest: str | None = None
    """Of the carry from which a lane goes on, "" if it begins; None for episodes that are not carried."""
    episodes: int = 0
    """Episodes to play, for an evaluation."""
    limit_s: float = 0.0
    relative_error: float = 0.0
    actors: int = 1
    """Actors that share the evaluation."""
    timeout_s: float
    """Seconds that it may take in a worker; a plain call has no limit, because it may stand in a debugger."""

    @property
    def actor_seed(self) -> int:
        """The seed of this actor alone."""
        return actor_seed(self.seed, self.mode, self.round, self.index)


@dataclass(frozen=True, kw_only=True)
class ActorResult:
    """What one actor has done, and what it has used."""

    worker: str = HERE
    attempt: int = 1
    stats: EpisodeStats
    trajectory: Trajectory | None = None
    carry: bytes = b""
    """The state in which it leaves its lane, if episodes are carried."""
    played_s: float = 0.0
    """Seconds that an evaluation's episodes took."""
    start_s: float
    end_s: float
    vcpu_s: float
    memory_bytes: int


def perform(task: ActorTask, player: Player, acting: Mapping[str, Acting], loaded: bytes = b"") -> ActorResult:
    """Do a task in this process.

    Args:
        acting: The policy of each agent.
        loaded: The carry of `task.digest`, unless the player has the lane.

    What is raised for a fault of the environment has the traceback in its `detail`.
    """
    try:
        return _performed(task, player, acting, loaded)
    except MarlessError as error:
        if error.__context__ is not None and not error.detail:
            error.detail = "".join(traceback.format_exception(error.__context__))
        raise


def _performed(task: ActorTask, player: Player, acting: Mapping[str, Acting], loaded: bytes) -> ActorResult:
    running, cpu_s = Stopwatch.start(), time.process_time()
    trajectory, carry, played_s = None, b"", 0.0
    if task.mode is not Mode.TRAIN:
        stats, played_s = player.play(task.env, acting, sizes=_sizes(task), limits=_limits(task), seed=task.actor_seed)
    elif task.digest is None:
        trajectory, stats = player.roll_out(task.env, acting, steps=task.steps, seed=task.actor_seed)
    else:
        rolled = player.go_on(
            task.env,
            acting,
            whose=(task.job, task.index),
            digest=task.digest,
            loaded=loaded,
            steps=task.steps,
            seed=task.actor_seed,
        )
        trajectory, stats, carry = rolled.trajectory, rolled.stats, rolled.carry
        rolled.living.digest = hashlib.sha256(carry).hexdigest()
    return ActorResult(
        stats=stats,
        trajectory=trajectory,
        carry=carry,
        played_s=played_s,
        start_s=running.started_s,
        end_s=running.now_s,
        vcpu_s=time.process_time() - cpu_s,
        memory_bytes=memory_bytes(),
    )


def memory_bytes() -> int:
    """The most memory that this process has used so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _sizes(task: ActorTask) -> Iterator[int]:
    """The number of episodes of each batch; those of the random baseline are single batches."""
    if task.mode is Mode.RANDOM:
        return iter((task.episodes,))
    return batches(task.episodes, task.env.envs, one_by_one=registry.one_by_one(task.env.name))


def _limits(task: ActorTask) -> PlayLimits:
    return PlayLimits(
        episodes=task.episodes, limit_s=task.limit_s, relative_error=task.relative_error, parts=max(task.actors, 1)
    )


_LENGTHS = struct.Struct("<QQ")
"""Bytes of the JSON, and of what follows it."""
_ALIGNED = 64


class Message(NamedTuple):
    """One message, as it was received."""

    facts: dict[str, Any]  # Any: JSON
    data: memoryview
    arrays: dict[str, NDArray[np.generic]]
    """Read-only views of memory that ends with the last of them."""


def send(
    sock: socket.socket,
    facts: Mapping[str, Any],  # Any: JSON
    blobs: Sequence[bytes] = (),
    arrays: Mapping[str, NDArray[np.generic]] | None = None,
) -> None:
    """Send one message; raises OSError if the other side is gone."""
    shared, described = _written(arrays) if arrays else (None, [])
    text = json.dumps({**facts, "arrays": described}).encode()
    try:
        head = _LENGTHS.pack(len(text), sum(map(len, blobs)))
        socket.send_fds(sock, [head], [] if shared is None else [shared])
        for part in (text, *blobs):
            sock.sendall(part)
    finally:
        if shared is not None:
            os.close(shared)


def receive(sock: socket.socket) -> Message:
    """Wait for one message; raises EOFError if the other side has ended, TimeoutError if the socket has a timeout."""
    head, descriptors, _, _ = socket.recv_fds(sock, _LENGTHS.size, 1)
    if not head:
        raise EOFError
    head += _exactly(sock, _LENGTHS.size - len(head))
    text_bytes, data_bytes = _LENGTHS.unpack(head)
    facts = json.loads(bytes(_exactly(sock, text_bytes)))
    described = facts.pop("arrays")
    arrays = _mapped(descriptors[0], described) if descriptors else {}
    return Message(facts, _exactly(sock, data_bytes), arrays)


def _exactly(sock: socket.socket, size: int) -> memoryview:
    found = memoryview(bytearray(size))
    at = 0
    while at < size:
        got = sock.recv_into(found[at:])
        if not got:
            raise EOFError
        at += got
    return found


def _written(arrays: Mapping[str, NDArray[np.generic]]) -> tuple[int, list[tuple[str, str, tuple[int, ...], int]]]:
    """The descriptor of memory that holds these arrays; and name, dtype, shape and offset of each."""
    described, size = [], 0
    for name, array in arrays.items():
        described.append((name, array.dtype.str, array.shape, size))
        size += -(-array.nbytes // _ALIGNED) * _ALIGNED
    descriptor = os.memfd_create("trajectory")
    os.truncate(descriptor, max(size, 1))
    with mmap.mmap(descriptor, max(size, 1)) as memory:
        for (_, _, _, at), array in zip(described, arrays.values(), strict=True):
            view = np.frombuffer(memory, array.dtype, array.size, at).reshape(array.shape)
            np.copyto(view, array)
            del view  # else the memory cannot be unmapped
    return descriptor, described


def _mapped(descriptor: int, described: Sequence[Sequence[Any]]) -> dict[str, NDArray[np.generic]]:  # Any: JSON
    try:
        memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return {
        name: np.frombuffer(memory, np.dtype(dtype), int(np.prod(shape)), at).reshape(shape)
        for name, dtype, shape, at in described
    }
