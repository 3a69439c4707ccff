"""Environments by name: `mpe/<game>` is ours, `pettingzoo/<module>` adapts any PettingZoo environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marless.envs.base import BatchedEnv


def make(name: str, options: Mapping[str, Any], batch: int) -> BatchedEnv:  # Any: options are YAML values
    """Build `batch` copies of an environment; raises SpecError for an unknown name or option."""
    raise NotImplementedError
