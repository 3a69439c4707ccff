"""Measures gradient steps on a GPU, beside those on the CPU of its machine: `python -m bench.gpu --json gpu.json`.

A step is a pass of stacked nets, one back, and Adam, as `learner.device: auto` measures it. On the GPU the nets are
stacked and started kernel by kernel, captured as a graph, or trained one by one; on the CPU they are shared out among
its cores, with compiled kernels. Two processes then train on the GPU at once, as two learner workers that share it.
`--device cpu` tries the program where there is no GPU, without graphs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from bench import harness
from bench.harness import Row, spread
from marless.core import machine
from marless.learning.algos.learner import Scope
from marless.learning.algos.training.captured import graphs_of
from marless.learning.algos.training.devices import GradientLoad
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.nets.model import ModelSpec

FRAMES = (4, 84, 84)
START_S, TOGETHER_S = 20.0, 10.0
"""Until processes have loaded torch and warmed up, and for how long they then train at once."""
_MOST = 10**6
"""More steps than any process takes."""


def load(policies: int, model: Mapping[str, object], samples: int, image: tuple[int, int, int] | None) -> GradientLoad:
    """The gradient steps of so many policies, which see 18 numbers or an image, and have five actions."""
    agents = tuple(f"agent_{i}" for i in range(policies))
    numbers = 18 if image is None else image[0] * image[1] * image[2]
    spaces = EnvSpaces((AgentClass("agent", agents, numbers, Discrete(5), image=image),), state_size=0, max_steps=None)
    return GradientLoad(ModelSpec.model_validate(model), spaces, Scope(0, (0,), "agent"), samples)


CASES = {
    "8 × [256, 256], 65,536 samples each": load(8, {"hidden": (256, 256)}, 65_536, None),
    "3 × [64, 64], 1,000 samples each": load(3, {"hidden": (64, 64)}, 1000, None),
    "nature, 256 samples": load(1, {"net": "nature", "hidden": (512,)}, 256, FRAMES),
}
SHARED = "8 × [256, 256], 65,536 samples each"
"""The case of the two processes."""


def of_policies(whole: GradientLoad, count: int) -> GradientLoad:
    """The same with fewer policies."""
    (agents,) = whole.spaces.classes
    fewer = replace(agents, agents=agents.agents[:count])
    return replace(whole, spaces=replace(whole.spaces, classes=(fewer,)))


def on_cores(whole: GradientLoad, cores: int) -> float:
    """Seconds of a step on the CPU, whose cores have equal parts of the policies."""
    policies = len(whole.agents.agents)
    parts = min(cores, policies)
    shares = [of_policies(whole, (policies + i) // parts) for i in range(parts)]
    with ThreadPoolExecutor(parts) as pool:
        return float(max(pool.map(lambda share: share.seconds("cpu"), shares)))


def measured(whole: GradientLoad, device: str, cores: int) -> dict[str, float]:
    """Milliseconds of a step, by how it is taken."""
    policies = len(whole.agents.agents)
    seconds = {"stacked": whole.seconds(device), "one by one": policies * of_policies(whole, 1).seconds(device)}
    if graphs_of(torch.device(device)) is not None and whole.agents.image is None:
        seconds["captured"] = replace(whole, captured=True).seconds(device)
    seconds[f"CPU, {cores} cores"] = on_cores(whole, cores)
    return {how: 1000 * each for how, each in seconds.items()}


def steps_per_s(whole: GradientLoad, device: str, at_s: float) -> float:
    """Steps a second from this Unix time on, for `TOGETHER_S`; raises BenchError if the process was not ready then."""
    step, done = whole.step(device, _MOST), 0
    step()
    if time.time() > at_s:
        raise harness.BenchError(f"a process needs more than {START_S:g} s to start")
    time.sleep(at_s - time.time())
    while time.time() < at_s + TOGETHER_S:
        step()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        done += 1
    return done / (time.time() - at_s)


def together(processes: int, device: str) -> float:
    """Steps a second of so many processes at once, in all."""
    command = [sys.executable, "-m", "bench.gpu", f"--device={device}", f"--at={time.time() + START_S}"]
    with ThreadPoolExecutor(processes) as pool:
        found = pool.map(lambda _: harness.run(command, timeout_s=START_S + 10 * TOGETHER_S), range(processes))
        return sum(float(output.lines[-1]["steps_per_s"]) for output in found)


def row(case: str, runs: Sequence[Mapping[str, float]]) -> Row:
    """A case's milliseconds, and how many times as long the others take as the quickest on the device."""
    medians = {how: spread([run[how] for run in runs]).median for how in runs[0]}
    best = min(medians[how] for how in ("stacked", "captured") if how in medians)
    cells = {f"{how}, ms": spread([run[how] for run in runs]).cell(3) for how in medians}
    slower = {f"× {how}": round(medians[how] / best, 1) for how in medians if how not in ("stacked", "captured")}
    return {"nets": case} | cells | slower


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--at", type=float, default=None, help="only train on the device from this Unix time on")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit(f"bench.gpu: torch {torch.__version__} sees no GPU; --device cpu tries the program without one")
    cores = machine.usable_cores()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(cores)
    if args.at is not None:
        print(json.dumps({"steps_per_s": steps_per_s(CASES[SHARED], args.device, args.at)}))
        return
    about = harness.machine()
    if args.device.startswith("cuda"):
        about |= {"gpu": torch.cuda.get_device_name(args.device)}
    runs = {case: [measured(each, args.device, cores) for _ in range(args.runs)] for case, each in CASES.items()}
    rows = [row(case, each) for case, each in runs.items()]
    one, two = together(1, args.device), together(2, args.device)
    headline: Row = {"steps_per_s": {"one process": round(one, 2), "two": round(two, 2)}, "ratio": round(two / one, 2)}
    harness.report("gpu", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
