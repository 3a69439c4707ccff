"""Policies with random weights, saved as a job saves them; and what they must do, computed the plain way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import yaml

from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import acting_heads, serial
from marless.learning.nets.acting import ActingState
from marless.storage.checkpoint import Checkpoint, CheckpointProgress, DiskCheckpoints, SavedPolicy

SPEC = {"algorithm": {"name": "ippo"}, "env": {"name": "mpe/simple_spread", "options": {"agents": 2}}}


def state(
    obs_size: int, action: Discrete | Box, *, seed: int, hidden: tuple[int, ...] = (8, 7), activation: str = "tanh"
) -> ActingState:
    """Random weights, far from uniform play."""
    rng = np.random.default_rng(seed)
    sizes = (obs_size, *hidden, action.n)
    arrays = {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        arrays[f"policy.{i}.weight"] = rng.normal(size=(outputs, inputs)).astype(np.float32)
        arrays[f"policy.{i}.bias"] = rng.normal(size=outputs).astype(np.float32)
    if isinstance(action, Box):
        arrays["policy.free"] = rng.normal(size=action.n).astype(np.float32)
    metadata = {"kind": "mlp", "activation": activation, "action": acting_heads.describe_action(action)}
    return ActingState(arrays, metadata)


def save(
    run: Path, states: dict[str, ActingState], groups: dict[str, tuple[str, ...]], *, round_: int = 1, keep: int = 9
) -> Path:
    """Make a run folder, or add a checkpoint to it; returns the checkpoint's directory."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    policies = {
        name: SavedPolicy(version=10 + round_, blobs={"acting": serial.encode_acting(each), "learning": b"later"})
        for name, each in states.items()
    }
    progress = CheckpointProgress(round=round_, env_steps=100, seed=0, actors=1, groups=groups)
    DiskCheckpoints(run / "checkpoints").save(Checkpoint(progress=progress, policies=policies), keep)
    return run / "checkpoints" / f"round-{round_:06d}"


def outputs(state: ActingState, obs: np.ndarray) -> np.ndarray:
    """What the net says to one observation."""
    hidden, depth = obs.astype(np.float64), sum(name.endswith(".bias") for name in state.acting)
    for i in range(depth):
        hidden = state.acting[f"policy.{i}.weight"] @ hidden + state.acting[f"policy.{i}.bias"]
        if i < depth - 1:
            hidden = np.tanh(hidden) if state.metadata["activation"] == "tanh" else np.maximum(hidden, 0)
    return hidden
