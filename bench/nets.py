"""Measures nets of each kind: an update against torch alone, and acting with NumPy, onnxruntime and torch.

`python -m bench.nets --json nets.json`. One thread; CPU milliseconds. An update of `nature` is a pass forward and
backward over a minibatch of images (4 · 84 · 84) and a step of Adam. We read the bytes of frames by their positions;
torch alone gets stacked numbers, and has nn.Sequential and its own Adam.
Acting is one step of all copies of one agent, in a fresh process: what it imports and holds counts. onnxruntime
runs the graph that `marless export --onnx` writes, from what is observed to the action, where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench import harness
from bench.acting_step import ACTIONS, FRAMES, HIDDEN, NUMPY, ONNX, TORCH, cpu_ms, layout_of_kind
from bench.harness import Row, spread
from bench.workers import on_one_thread
from marless.learning.algos.training.images import ImageReader, RoundImages, reading
from marless.learning.envs.base import AgentClass, Discrete
from marless.learning.nets import stacked
from marless.learning.nets.acting import ActingState, description
from marless.learning.nets.adam import Adam
from marless.learning.nets.model import ModelSpec
from marless.learning.policies.onnx_file import write_onnx
from marless.learning.policies.policy import Origin, Policy
from marless.learning.policies.policy_file import SavedTeam

BATCHES, COPIES = (256, 1024), 32


def ours(batch: int) -> Callable[[], object]:
    """An update of marless's net, which reads bytes of frames by their positions, as in a learner."""
    layout, (frames, height, width) = layout_of_kind("nature"), FRAMES
    flat_1D = torch.tensor(layout.initial(np.random.default_rng(0), 1.0))[None]
    reader = ImageReader(torch.device("cpu"))
    shown = np.random.default_rng(1).integers(256, size=(batch, height * width), dtype=np.uint8)
    reader.show(RoundImages((shown,), ("obs/0",), frames))
    net = reading(stacked.net(layout, flat_1D, "relu"), reader)
    input_1IM = torch.cat([torch.randint(batch, (1, frames, batch)).float(), torch.ones(1, 1, batch)], dim=1)
    along_1KM = torch.rand(1, ACTIONS, batch)
    zeros = torch.zeros_like(flat_1D), torch.zeros_like(flat_1D), torch.zeros(1, dtype=torch.float64)
    adam = Adam(flat_1D, *zeros, steps=10_000, lr=1e-4, eps=1e-5)

    def update() -> None:
        net.forward(input_1IM)
        net.backward(along_1KM)
        adam.step(net.gradient_PD)

    return update


def torchs(batch: int) -> Callable[[], object]:
    """The same update with torch's modules."""
    convolutions = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
    activated = [part for each in convolutions for part in (each, nn.ReLU())]
    net = nn.Sequential(*activated, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS))
    frames, along = torch.rand(batch, *FRAMES), torch.rand(batch, ACTIONS)
    adam = torch.optim.Adam(net.parameters(), lr=1e-4, eps=1e-5)

    def update() -> None:
        adam.zero_grad()
        (net(frames) * along).sum().backward()
        adam.step()

    return update


def write_step(kind: str, file: Path) -> None:
    """Write a policy with such a net as `marless export --onnx` does."""
    layout = layout_of_kind(kind)
    net = {"recurrent": kind} if layout.memory else {"net": kind}
    model = ModelSpec.model_validate(net | {"hidden": HIDDEN[kind], "activation": "relu"})
    agents = AgentClass("all", ("agent",), layout.inputs, Discrete(ACTIONS), layout.image, layout.entities)
    weights = layout.to_arrays("policy", layout.initial(np.random.default_rng(0), 1.0))
    state = ActingState(weights, description(agents, model))
    policy = Policy(name="policy", agents=("agent",), version=0, state=state)
    write_onnx(file, SavedTeam(policies=(policy,), origin=Origin()))


def updates(runs: int) -> Iterator[Row]:
    """A row for each size of minibatch."""
    for batch in BATCHES:
        made, theirs = ours(batch), torchs(batch)
        found = [(cpu_ms(made, least_s=2.0), cpu_ms(theirs, least_s=2.0)) for _ in range(runs)]
        yield {
            "net": "nature",
            "work": f"update of {batch:,}",
            "marless": spread([one for one, _ in found]).cell(0),
            "torch": spread([other for _, other in found]).cell(0),
            "marless / torch": spread([one / other for one, other in found]).cell(2),
        }


def steps(runs: int) -> Iterator[Row]:
    """A row for each kind of net: a step of all copies, in processes that measure the three ways in turns."""
    ways = {"marless": NUMPY, "onnxruntime": ONNX, "torch": TORCH}
    if not importlib.util.find_spec("onnxruntime"):
        del ways["onnxruntime"]
    with tempfile.TemporaryDirectory() as folder:
        for kind in HIDDEN:
            file = Path(folder, f"{kind}.onnx")
            if "onnxruntime" in ways:
                write_step(kind, file)
            found: dict[str, list[Any]] = {name: [] for name in ways}  # Any: JSON
            for _ in range(runs):
                for name, way in ways.items():
                    program: list[str | Path] = [
                        sys.executable,
                        "-m",
                        "bench.acting_step",
                        kind,
                        way,
                        str(COPIES),
                        file,
                    ]
                    found[name].append(harness.run(program, timeout_s=120).lines[-1])
            row: Row = {"net": kind, "work": "step"}
            for name, each in found.items():
                row[name] = spread([one["ms"] for one in each]).cell(3 if each[0]["ms"] < 1 else 1)
                row[f"{name}, MiB"] = spread([one["mib"] for one in each]).cell(0)
                row[f"{name}, ready (CPU s)"] = spread([one["ready_s"] for one in each]).cell(2)
            pairs = zip(found["marless"], found["torch"], strict=True)
            row["marless / torch"] = spread([one["ms"] / other["ms"] for one, other in pairs]).cell(2)
            yield row


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args: argparse.Namespace = harness.parser(__doc__, runs=3).parse_args()
    on_one_thread()
    about, table = harness.machine(), []
    for row in chain(updates(args.runs), steps(args.runs)):
        harness.say(f"{row['net']}, {row['work']}")
        table.append(row)
    harness.report("nets", about, table, {}, args.json)


if __name__ == "__main__":
    main()
