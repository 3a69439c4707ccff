"""Counts the copies of a trajectory of images on its way from the environment to a learner's nets.

`python -m bench.frames --json frames.json`: 128 steps of 32 copies of one agent that observes single images of
84 · 84 bytes, in mid-episode, and nets that read the last four. An actor plays and frames the upload, a learner maps
what was sent from a file and updates its nets in 16 minibatches; each is a process of its own, whose peak memory is
compared with that before. Sizes are in bytes of the images: with 1.0, each image is there once. The row `floats` is
what four stacked images of float32 at each step would be.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness
from bench.harness import Row
from marless.core.group import Group
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput
from marless.learning.data.rollout import Lane
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.envs.synthetic import SyntheticEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless.rpc import chunks
from marless.rpc.v1 import learner_pool_pb2

STEPS, COPIES, FRAMES = 128, 32, 4
SIDE = 84
PLAYER = AgentClass("player", ("player",), SIDE * SIDE, Discrete(6), (1, SIDE, SIDE))
SPACES = EnvSpaces((PLAYER,), 0, 108_000)
IMAGES = STEPS * COPIES * SIDE * SIDE
"""Bytes of all images of a trajectory."""
MODEL = ModelSpec.model_validate({"hidden": (8,), "frames": FRAMES})
SETTINGS = {"name": "ippo", "epochs": 1, "minibatches": 16}


def learner() -> Learner:
    """A learner that holds the policy's first version."""
    algorithm = algorithms.algorithm("ippo")
    config = algorithm.config_type.model_validate(SETTINGS)
    (scope,) = scopes(algorithm, config, SPACES)
    made = algorithm.learner(config, LearnerContext(MODEL, SPACES, scope, "cpu", carried=True))
    made.load("player", made.initial("player", 0))
    return made


def header(trajectory: Trajectory) -> learner_pool_pb2.UploadHeader:
    """The header of its upload."""
    infos = [
        learner_pool_pb2.ArrayInfo(name=name, dtype=array.dtype.name, shape=array.shape)
        for name, array in trajectory.arrays.items()
    ]
    return learner_pool_pb2.UploadHeader(job="frames", arrays=infos)


def act(folder: Path) -> Row:
    """Play a second round of a lane, and write its upload to a file: once as it is sent, once as the pool keeps it."""
    lane, state = Lane(SyntheticEnv(SPACES, COPIES)), learner().state("player")
    lane.begin(0)
    for number, steps in enumerate((FRAMES, STEPS)):
        policies = ActingPolicies.from_states(PLAYER, [state])
        before_bytes = _peak_bytes()
        trajectory, _ = lane.roll([policies], steps=steps, seed=number, with_state=False, index=0)
    views = [array.reshape(-1).view(np.uint8).data for array in trajectory.arrays.values()]
    sent = sum(map(len, chunks.frames(header(trajectory), views)))
    with (folder / "trajectory").open("wb") as file:
        for view in views:
            file.write(view)
    (folder / "header").write_bytes(header(trajectory).SerializeToString())
    return {"sent": sent / IMAGES, "actor": (_peak_bytes() - before_bytes) / IMAGES}


def learn(folder: Path) -> Row:
    """Map the file, as a learner worker does, and update the policy."""
    from marless.services.learner_pool.content import views

    made, described = learner(), learner_pool_pb2.UploadHeader.FromString((folder / "header").read_bytes())
    with (folder / "trajectory").open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    before_bytes = _peak_bytes()
    made.update(RoundInput(1, 0, 0, (Group("player", ("player",)),), [views(described, content)]))
    # The mapping counts as soon as it is read. Beside it are a minibatch of policies and one of critics as float32.
    return {"learner": (_peak_bytes() - before_bytes) / IMAGES}


def measure() -> list[Row]:
    """One row with the sizes, relative to the bytes of all images."""
    with tempfile.TemporaryDirectory() as name:
        found: Row = {}
        for part in PARTS:
            output = harness.run([sys.executable, "-m", "bench.frames", "--part", part, name], timeout_s=300)
            found |= output.lines[-1]
    return [found | {"floats": 4.0 * FRAMES}]


PARTS = {"act": act, "learn": learn}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(argv: list[str]) -> None:
    parser = harness.parser(__doc__, runs=1)
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.part:
        name, folder = args.part
        print(json.dumps(PARTS[name](Path(folder))))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = measure()
    about: dict[str, Any] = {"steps": STEPS, "copies": COPIES, "frames": FRAMES, "image_bytes": IMAGES}
    harness.report("frames", about | harness.machine(), rows, {"sent": rows[0]["sent"]}, args.json)


if __name__ == "__main__":
    main(sys.argv[1:])
