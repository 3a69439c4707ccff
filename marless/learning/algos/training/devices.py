"""Where a learner computes: the device that is chosen, and by which measurement; this worker's share of it; its name.

Shapes: P nets, I inputs + 1, K outputs, M samples of a minibatch.
"""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from marless.core.errors import SpecError
from marless.learning.algos.learner import Scope
from marless.learning.algos.training.captured import Batch, CapturedSteps, Metrics, graphs_of
from marless.learning.envs.base import AgentClass, EnvSpaces
from marless.learning.nets import stacked
from marless.learning.nets.adam import Adam
from marless.learning.nets.compiled import described
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.kinds import Precision
from marless.learning.nets.layout import NetLayout, generator, layout
from marless.learning.nets.model import ModelSpec

_WARM_UP, _STEPS, _LONGEST_S = 3, 20, 0.5
"""Gradient steps before those that are measured, of these at most, and seconds after which no more are taken."""

MOST_KEPT = 0.5
"""Part of a worker's memory on a GPU that learners may hold before a task; the rest is for its minibatches."""


@dataclass(frozen=True)
class GradientLoad:
    """A gradient step as a job's learner takes it."""

    model: ModelSpec
    spaces: EnvSpaces
    scope: Scope
    samples: int
    """Samples of a minibatch, of each policy."""
    precision: Precision = "float32"
    captured: bool = False
    """True if a GPU repeats it as a captured graph."""

    @property
    def agents(self) -> AgentClass:
        """The scope's largest class."""
        return max(self.scope.agent_classes(self.spaces), key=lambda each: len(each.agents))

    def seconds(self, device: str) -> float:
        """Seconds of a gradient step of that class on a device, once it is warm."""
        return _timed(self.step(device, _WARM_UP + _STEPS), device)

    def step(self, device: str, times: int) -> Callable[[], None]:
        """A gradient step of that class, to be taken so many times: a pass through the nets, one back, and Adam.

        A memory is left out, but its steps follow one another, as they would with it.
        """
        flat_PD = self.weights(self.agents.agents).to(device)
        moments = torch.zeros_like(flat_PD), torch.zeros_like(flat_PD)
        counts_P = torch.zeros(len(flat_PD), dtype=torch.float64, device=device)
        adam = Adam(flat_PD, *moments, counts_P, steps=times, lr=1e-3, eps=1e-8)
        net = self.nets(flat_PD, self.precision)
        batch = {"x": torch.ones(len(flat_PD), self.inputs + 1, self.samples).to(device)}
        graphs = graphs_of(torch.device(device)) if self.captured else None
        captured = graphs and CapturedSteps(graphs, net.gradient_PD, net.release)

        def differentiate(batch: Batch) -> Metrics:
            output_PKM = net.forward(batch["x"], *self.resets(batch["x"]))
            net.backward(output_PKM / self.samples)
            return {}

        def step() -> None:
            if captured:
                captured.run(differentiate, batch, None)
            else:
                differentiate(batch)
            adam.step(net.gradient_PD)

        return step

    def weights(self, names: Sequence[str]) -> Tensor:
        """Initial weights [P, D] of policies of that class with these names."""
        return torch.tensor(np.stack([self._plan.initial(generator(0, name), 1.0) for name in names]))

    def nets(self, flat_PD: Tensor, precision: Precision) -> stacked.Net:
        """The policies' nets with these weights."""
        return stacked.net(self._plan, flat_PD, self.model.activation, precision)

    def resets(self, x_PIM: Tensor) -> tuple[Tensor, ...]:
        """What a pass of nets with memory needs beside inputs, if each sample is an episode of one step."""
        return (torch.ones(1, x_PIM.shape[2], dtype=torch.bool, device=x_PIM.device),) if self._plan.memory else ()

    @property
    def inputs(self) -> int:
        """I, the number of the nets' inputs."""
        return self._plan.inputs

    @property
    def _plan(self) -> NetLayout:
        model = self.model.model_copy(update={"recurrent": "none", "layer_norm": False})
        return layout(Inputs.of(self.agents, model).shape(self.agents), model, self.agents.action.n)


def _timed(step: Callable[[], None], device: str) -> float:
    """Mean seconds of a step, once it is warm."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    for _ in range(_WARM_UP):
        step()
    wait()
    began_s, done = time.perf_counter(), 0
    while done < _STEPS and time.perf_counter() - began_s < _LONGEST_S:
        step()
        done += 1
        wait()
    return (time.perf_counter() - began_s) / done


def choose_device(
    asked: str, load: GradientLoad | None = None, seconds: Callable[[GradientLoad, str], float] = GradientLoad.seconds
) -> tuple[str, str]:
    """The torch device to use, and why, for people; raises SpecError for a GPU that does not exist.

    With `load`, auto measures it on GPU and CPU, and takes the quicker one; without, it takes the GPU.
    """
    gpus = torch.cuda.device_count()
    if asked == "auto" and not gpus:
        return "cpu", f"auto: torch sees no GPU; threads: {torch.get_num_interop_threads()}"
    if asked == "auto":
        return _quicker(load, seconds)
    if asked.startswith("cuda") and int(asked.partition(":")[2] or 0) >= gpus:
        raise SpecError(f"learner.device: {asked} asked for, but torch sees {gpus} GPUs; use auto or cpu")
    return asked, "as configured"


def _quicker(load: GradientLoad | None, seconds: Callable[[GradientLoad, str], float]) -> tuple[str, str]:
    gpu, name = "cuda:0", torch.cuda.get_device_name(0)
    if load is None:
        return gpu, name
    if load.model.net.startswith("module/"):
        return gpu, f"auto: {name}; nets of modules are not measured"
    if load.precision != "float32":  # a CPU without it takes minutes for a step
        return gpu, f"auto: {name}; {load.precision} is not measured"
    gpu_s = seconds(load, gpu)
    # The CPU trains the policies of a class in parallel, as far as it has threads.
    cpu_s = seconds(load, "cpu") / min(torch.get_num_interop_threads(), len(load.agents.agents))
    found = f"a gradient step takes {gpu_s * 1e3:.3g} ms on {name}, {cpu_s * 1e3:.3g} ms on the CPU"
    return gpu if gpu_s < cpu_s else "cpu", f"auto, measured: {found}"


def limit_memory(share: float) -> None:
    """Let this process use no more than a part of each GPU's memory, which other workers use, too."""
    for index in range(torch.cuda.device_count() if share < 1 else 0):
        torch.cuda.set_per_process_memory_fraction(share, index)


class DeviceMemory:
    """This worker's part of a GPU's memory, and what tensors hold of it."""

    def __init__(self, share: float) -> None:
        """Make one for a worker with this share, as in `limit_memory`."""
        self._share = share

    def is_short(self, device: str) -> bool:
        """True if learners that are kept between their tasks hold too much of it; never on a CPU."""
        if not device.startswith("cuda"):
            return False
        limit = self._share * torch.cuda.get_device_properties(device).total_memory
        return torch.cuda.memory_allocated(device) > MOST_KEPT * limit

    def collect(self, device: str) -> None:
        """Give back what discarded learners held: their parts refer to one another, so only Python's collector does."""
        gc.collect()
        if device.startswith("cuda"):
            torch.cuda.empty_cache()


@contextmanager
def memory_needed(device: str) -> Iterator[None]:
    """Context that raises SpecError where a GPU has too little memory for what is computed in it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        advice = (
            "more algorithm.minibatches or a smaller algorithm.batch, fewer workers on the GPU, or learner.device=cpu"
        )
        raise SpecError(f"learner: {device} has too little memory for a gradient step; set {advice}") from error


def lacked_memory(error: SpecError) -> bool:
    """True for an error of `memory_needed`."""
    return isinstance(error.__cause__, torch.OutOfMemoryError)


def compute_again_alike(device: str, *, wanted: bool) -> None:
    """Have a GPU use only kernels that compute the same bits again; a CPU does so anyway."""
    if device.startswith("cuda"):
        torch.use_deterministic_algorithms(wanted)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nobody reads it


def computed_by(device: str, precision: Precision = "float32") -> str:
    """What decides the bits of results: device, versions of torch and NumPy, and on a CPU its kind and kernels."""
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    if precision != "float32":
        versions = f"{versions}, {precision}"
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, {versions}"
    return f"{_cpu()}, {versions}, kernels {described()}"


@cache  # every result of a learner names it, and the file of a large machine is long
def _cpu() -> str:
    """The CPU's name, or at least its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
