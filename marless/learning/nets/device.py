"""The device that a learner computes on."""

from __future__ import annotations

import torch

from marless.core.errors import SpecError


def choose_device(asked: str) -> tuple[str, str]:
    """The torch device to use, and why, for the log; raises SpecError for a GPU that does not exist."""
    if asked == "auto":
        if torch.cuda.is_available():
            return "cuda:0", torch.cuda.get_device_name(0)
        return "cpu", f"auto: torch sees no GPU; threads: {torch.get_num_interop_threads()}"
    gpus = torch.cuda.device_count()
    if asked.startswith("cuda") and int(asked.partition(":")[2] or 0) >= gpus:
        raise SpecError(f"learner.device: {asked} asked for, but torch sees {gpus} GPUs; use auto or cpu")
    return asked, "as configured"


def compute_side_by_side() -> None:
    """Let functions of an update run in parallel: torch's threads serve one function each, not parts of operations."""
    torch.set_num_interop_threads(torch.get_num_threads())
    torch.set_num_threads(1)
