"""What each function of a job gets: vCPUs and memory."""

from __future__ import annotations

from pydantic import Field

from marless.core.settings import Strict


class FunctionSize(Strict):
    """vCPUs and memory (MiB) of one function; both are billed while it runs."""

    vcpus: float = Field(1.0, gt=0, le=192)
    memory_mb: int = Field(1024, ge=128, le=1_048_576)


class FunctionsSpec(Strict):
    """The sizes of the job's functions (Wei et al. 2025, §5: 1 to 2 vCPUs, at least 1 GB)."""

    actor: FunctionSize = FunctionSize()  # type: ignore[call-arg]  # pydantic's plugin-free view of Field defaults
    learner: FunctionSize = Field(
        FunctionSize(memory_mb=2048),  # type: ignore[call-arg]
        description="of each post-processing, critic and policy function",
    )
    prewarm: bool = Field(True, description="start the next round's actors while learners work")
