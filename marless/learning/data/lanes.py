"""The lanes of environment copies that live in a worker, so that a lane which returns to it needs no loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from marless.core.errors import told
from marless.core.log import structlog
from marless.learning.data.rollout import Lane
from marless.learning.envs.base import BatchedEnv

log = structlog.get_logger()
LIVING = 16
"""Lanes that live in one worker; each holds an environment. Others are loaded into the one used longest ago, which is
cheap for environments that save their state, and slow for those whose episodes are played again."""


class EnvKey(NamedTuple):
    """What a batch of environment copies is made from; equal keys may share one."""

    name: str
    options_json: str
    with_state: bool
    """Whether its frames hold the global state."""
    envs: int
    """Number of copies."""
    agents_crc32: int
    """Checksum of the job's agents; 0: not known."""


def close_env(env: BatchedEnv) -> None:
    """Close an environment that is needed no more; an error is logged only, because nothing depends on it."""
    try:
        env.close()
    except Exception as error:  # noqa: BLE001  # third-party code may raise anything
        log.warning("env.close_failed", error=told(error))


@dataclass
class Living:
    """A lane in this process."""

    env_key: EnvKey
    env: BatchedEnv
    lane: Lane
    whose: tuple[str, int] = ("", 0)
    """Its job, and its index there."""
    digest: str = ""
    """Of its carry; "" while it moves, and after an error."""


class LivingLanes:
    """The living lanes of one worker, at most `LIVING`."""

    def __init__(self, make: Callable[[EnvKey], BatchedEnv]) -> None:
        self._make = make
        self._living: list[Living] = []
        """Those used last are at the end."""

    def has(self, env_key: EnvKey, whose: tuple[str, int], digest: str) -> bool:
        """True if a lane was left with this carry, so that it need not be loaded."""
        return self._left(env_key, whose, digest) is not None

    def take(self, env_key: EnvKey, whose: tuple[str, int], digest: str) -> tuple[Living, bool]:
        """The lane to run next, and whether it is the one that was left with this carry; if not, begin or load it.

        Until its new digest is set, no other task continues it: an interrupted one may have moved it.
        """
        found = self._left(env_key, whose, digest)
        living = found or self._place(env_key, whose)
        if living in self._living:
            self._living.remove(living)
        self._living.append(living)
        living.whose, living.digest = whose, ""
        return living, found is not None

    def close(self) -> None:
        """Close all environments."""
        for each in self._living:
            close_env(each.env)
        self._living.clear()

    def _left(self, env_key: EnvKey, whose: tuple[str, int], digest: str) -> Living | None:
        wanted = (env_key, whose, digest)
        left = (each for each in self._living if each.digest)
        return next((each for each in left if (each.env_key, each.whose, each.digest) == wanted), None)

    def _place(self, env_key: EnvKey, whose: tuple[str, int]) -> Living:
        """Where a lane can begin or be loaded: one that nobody goes on with, a new one, or that used longest ago."""
        alike = [each for each in self._living if each.env_key == env_key]
        # What this lane itself has left here earlier is out of date: another worker has moved it on, or it has begun
        # anew.
        if free := next((each for each in alike if not each.digest or each.whose == whose), None):
            return free
        if len(self._living) >= LIVING:
            if alike:
                return alike[0]
            close_env(self._living.pop(0).env)
        env = self._make(env_key)
        return Living(env_key, env, Lane(env))
