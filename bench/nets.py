"""Measures nets of each kind: an update against torch alone, and acting with NumPy, onnxruntime and torch.

`python -m bench.nets --json nets.json`. One thread; CPU milliseconds. An update of `nature` is a pass forward and
backward over a minibatch of frames (4 · 84 · 84) and a step of Adam; torch alone has nn.Sequential and its own Adam.
Acting is one step of all copies of one agent, in a fresh process: what it imports and holds counts. onnxruntime (with
onnx and onnxscript, to write its file) is measured where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench import harness
from bench.acting_step import ACTIONS, FRAMES, HIDDEN, NUMPY, ONNX, TORCH, cpu_ms, layout_of_kind
from bench.harness import Row, spread
from bench.workers import on_one_thread
from marless.learning.nets import stacked
from marless.learning.nets.adam import Adam
from marless.learning.nets.kinds import kind_of
from marless.learning.nets.net_kind import Layer
from marless.learning.nets.stacked import matrices
from marless.learning.nets.unrolled import torch_ops

BATCHES, COPIES = (256, 1024), (8, 32)


def ours(batch: int) -> Callable[[], object]:
    """An update of marless's net; each image of its input is in one piece, as the learner reads minibatches."""
    layout = layout_of_kind("nature")
    flat_1D = torch.tensor(layout.initial(np.random.default_rng(0), 1.0))[None]
    net = stacked.net(layout, flat_1D, "relu")
    input_1IM = torch.rand(1, batch, layout.inputs + 1).transpose(1, 2)
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


def write_step(kind: str, copies: int, file: Path) -> None:
    """Write one step of the kind's own definition as an ONNX graph."""
    layout = layout_of_kind(kind)
    flat_1D = torch.tensor(layout.initial(np.random.default_rng(0), 1.0))[None]

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ParameterList(each.clone() for each in matrices(layout, flat_1D))

        def forward(self, obs_BI: torch.Tensor, memory_1HB: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ops = replace(torch_ops("relu", layout.input_shape), images=layout.input_shape.images)
            return kind_of(kind).step(ops, [Layer(each) for each in self.layers], obs_BI.T[None], memory_1HB)

    example = torch.rand(copies, layout.inputs), torch.zeros(1, layout.memory, copies)
    torch.onnx.export(Step().eval(), example, file, dynamo=True, external_data=False, verbose=False)


def rows(runs: int) -> Iterator[Row]:
    """The table, row by row."""
    program = [sys.executable, "-m", "bench.acting_step"]
    for batch in BATCHES:
        made, theirs = ours(batch), torchs(batch)
        found = [(cpu_ms(made, least_s=2.0), cpu_ms(theirs, least_s=2.0)) for _ in range(runs)]
        yield {
            "net": "nature",
            "work": f"update of {batch}",
            "with": "marless",
            "CPU ms": spread([one for one, _ in found]).cell(0),
            "× torch alone": spread([one / other for one, other in found]).cell(2),
        }
        yield {
            "net": "nature",
            "work": f"update of {batch}",
            "with": TORCH,
            "CPU ms": spread([b for _, b in found]).cell(0),
        }
    ways = [NUMPY, *([ONNX] if importlib.util.find_spec("onnxruntime") else []), TORCH]
    with tempfile.TemporaryDirectory() as folder:
        for kind in HIDDEN:
            for copies in COPIES:
                file = Path(folder, f"{kind}{copies}.onnx")
                if ONNX in ways:
                    write_step(kind, copies, file)
                for way in ways:
                    taken = [harness.run([*program, kind, way, str(copies), file], timeout_s=120) for _ in range(runs)]
                    each = [output.lines[-1] for output in taken]
                    yield {
                        "net": kind,
                        "work": f"act, {copies} copies",
                        "with": way,
                        "CPU ms": spread([one["ms"] for one in each]).cell(3),
                        "MiB": spread([one["mib"] for one in each]).cell(0),
                        "ready (CPU s)": spread([one["ready_s"] for one in each]).cell(2),
                    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args: argparse.Namespace = harness.parser(__doc__, runs=3).parse_args()
    on_one_thread()
    about, table = harness.machine(), []
    for row in rows(args.runs):
        harness.say(f"{row['net']}, {row['work']}, {row['with']}: {row['CPU ms']}")
        table.append(row)
    harness.report("nets", about, table, {}, args.json)


if __name__ == "__main__":
    main()
