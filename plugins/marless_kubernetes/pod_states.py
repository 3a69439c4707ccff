"""What has become of a Pod, and how people are told: `PodState`, read from the Pod as the API server has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marless_kubernetes.settings import PodSettings

Json = Mapping[str, Any]  # Any: as the server has it
_PULLS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_STARTS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
"""Why a container does not start, besides its image."""
_OUT_OF_MEMORY = "OOMKilled"
_KILLED = 137
"""Exit code of a container that SIGKILL has ended."""


@dataclass(frozen=True)
class PodState:
    """What is known of a Pod; sentences are for people, and "" where they do not apply."""

    uid: str = ""
    """"" before it was seen."""
    is_scheduled: bool = False
    """True once it has a node."""
    has_started: bool = False
    """True once its container runs, or has run."""
    waits: str = ""
    """Why it has no node yet."""
    trouble: str = ""
    """Why its container does not start, although it has a node."""
    leaving: str = ""
    """Why it is about to end, while it still runs."""
    ended: str = ""
    """How it ended."""
    last_words: str = ""
    """The end of what it wrote, if it failed."""


GONE = PodState(ended="its Pod is gone: something else has deleted it, or its node")


def state_of(pod: Json, settings: PodSettings) -> PodState:
    """The state of a Pod."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    container: Json = next(iter(status.get("containerStatuses") or ()), {})
    state: Json = container.get("state") or {}
    finished: Json = state.get("terminated") or {}
    return PodState(
        uid=metadata["uid"],
        is_scheduled=bool((pod.get("spec") or {}).get("nodeName")),
        has_started=bool(state.get("running") or finished),
        waits=_why_it_waits(conditions, settings),
        trouble=_trouble(state.get("waiting") or {}, settings),
        leaving=_why_it_leaves(conditions, metadata),
        ended=_how_it_ended(pod, conditions, finished, settings),
        last_words=str(finished.get("message") or "") if finished.get("exitCode") else "",
    )


def _why_it_waits(conditions: Mapping[str, Json], settings: PodSettings) -> str:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") != "False":
        return ""
    said = _said(scheduled)
    if scheduled.get("reason") == "SchedulingGated":
        return f"a worker waits for its admission ({said}); see the queue that its labels= name"
    return (
        f"no node has room for a worker of {settings.demand}: {said}; add nodes, or end something else, or ask for "
        "less; an autoscaler adds nodes by itself"
    )


def _trouble(waiting: Json, settings: PodSettings) -> str:
    reason = waiting.get("reason", "")
    if reason in _PULLS:
        return (
            f"image {settings.image} cannot be pulled: {_said(waiting)}; push it to a registry that the nodes read, or "
            "correct image= or pull_secret="
        )
    if reason in _STARTS:
        return f"a worker's container cannot start: {_said(waiting)}; correct the launcher's options, or the Secret"
    return ""


def _why_it_leaves(conditions: Mapping[str, Json], metadata: Json) -> str:
    disruption = conditions.get("DisruptionTarget") or {}
    if disruption.get("status") == "True":
        return _said(disruption)
    return "its Pod is being deleted" if metadata.get("deletionTimestamp") else ""


def _how_it_ended(pod: Json, conditions: Mapping[str, Json], finished: Json, settings: PodSettings) -> str:
    """A Pod that the node ends says why itself; otherwise its container's exit does."""
    status = pod.get("status") or {}
    if finished.get("reason") == _OUT_OF_MEMORY:
        return f"out of memory: it needs more than memory={settings.memory_bytes // 2**20}m"
    if status.get("phase") == "Failed" and status.get("reason"):  # Evicted, NodeShutdown, UnexpectedAdmissionError, …
        return _said(status)
    if finished and (disrupted := conditions.get("DisruptionTarget")):
        return _said(disrupted)
    if finished and finished["exitCode"] and pod["metadata"].get("deletionTimestamp"):
        return "its Pod was deleted"
    if finished:
        return _of_exit(finished, settings)
    return str(status["phase"]).lower() if status.get("phase") in ("Failed", "Succeeded") else ""


def _of_exit(finished: Json, settings: PodSettings) -> str:
    code = int(finished["exitCode"])
    if code == _KILLED:  # not every node says why
        return f"killed, perhaps because it was out of memory: it may use memory={settings.memory_bytes // 2**20}m"
    return f"exit code {code}"


def _said(told: Json) -> str:
    """A reason and a message in one, without repeating: "Evicted: The node was low on resource: memory"."""
    parts: Sequence[str] = [str(told.get(key) or "") for key in ("reason", "message")]
    return ": ".join(" ".join(each.split()).rstrip(".") for each in parts if each)[:1000]
