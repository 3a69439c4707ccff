"""One process of `bench.nets` that acts: it imports only what it measures, because its memory is measured, too."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

FRAMES = (4, 84, 84)
ACTIONS = 6
ENTITIES = (4, 3, 2)
"""Start, count and size, as in `mpe/simple_spread`."""
HIDDEN = {"mlp": (64, 64), "gru": (64, 64), "lstm": (64, 64), "entities": (64, 64), "nature": (512,), "impala": (256,)}
NUMBERS = 18
"""Observed where there is no image."""
NUMPY, ONNX, TORCH = "NumPy", "onnxruntime", "torch"


def cpu_ms(work: Callable[[], object], *, least_s: float, least: int = 3) -> float:
    """The median CPU time of a call, of so many calls that they take this long, after one to warm up."""
    work()
    took: list[float] = []
    while sum(took) < least_s or len(took) < least:
        start_s = time.process_time()
        work()
        took.append(time.process_time() - start_s)
    return 1000 * sorted(took)[len(took) // 2]


def layout_of_kind(kind: str) -> Any:  # Any: imported only where it is measured
    """The layout of a kind's net in this benchmark."""
    from marless.learning.envs.base import Entities
    from marless.learning.nets.layout import layout_of
    from marless.learning.nets.net_kind import InputShape

    frames = kind in ("nature", "impala")
    inputs = InputShape(FRAMES[0] * FRAMES[1] * FRAMES[2], FRAMES) if frames else InputShape(NUMBERS)
    if kind == "entities":
        inputs = InputShape(NUMBERS, entities=(Entities(*ENTITIES),))
    return layout_of(kind, inputs, HIDDEN[kind], ACTIONS)


def step_of(kind: str, way: str, copies: int, file: Path) -> Callable[[], object]:
    """One step of all copies, from their observations to the outputs."""
    import numpy as np

    if way == ONNX:
        onnxruntime = import_module(ONNX)  # not a dependency of marless

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        dtypes = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(bool)": np.bool_}
        given: dict[str, Any] = {  # Any: arrays of three dtypes
            # All ones: all actions are legal, and all entities there.
            each.name: np.ones([copies, *each.shape[1:]], dtypes[each.type])
            for each in session.get_inputs()
        }
        return lambda: session.run(None, given)
    layout = layout_of_kind(kind)
    flat_1D = layout.initial(np.random.default_rng(0), 1.0)[None]
    obs_BI = np.random.default_rng(1).random((copies, layout.inputs), np.float32)
    if way == TORCH:
        import torch

        from marless.learning.nets import stacked

        torch.set_num_threads(1)
        trained = stacked.net(layout, torch.tensor(flat_1D), "relu")
        input_1IB = torch.cat([torch.tensor(obs_BI), torch.ones(copies, 1)], 1).T[None]
        resets = torch.zeros(1, copies, dtype=torch.bool) if layout.memory else None
        return lambda: trained.evaluate(input_1IB, resets)
    from marless.learning.nets import acting_nets

    owners = [layout.to_arrays("policy", flat_1D[0])]
    net, _ = acting_nets.stacked(
        owners, kind=kind, activation="relu", inputs=layout.input_shape, outputs=ACTIONS, free=0, hidden=HIDDEN[kind]
    )
    buffer = net.allocate(1, copies)

    def act() -> None:
        buffer[0, :-1] = obs_BI.T
        net.output()

    return act


def main(argv: list[str]) -> None:
    """Print milliseconds a step, MiB, and seconds until it has acted once, since the process began."""
    kind, way, copies, file = argv
    work = step_of(kind, way, int(copies), Path(file))
    work()
    ready_s = time.process_time()
    ms = cpu_ms(work, least_s=1.0)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    mib = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    print(json.dumps({"ms": ms, "mib": mib, "ready_s": ready_s}))


if __name__ == "__main__":
    main(sys.argv[1:])
