"""What to do when an API server refuses something, for people."""

from __future__ import annotations

from collections.abc import Callable

_ADVICE: tuple[tuple[Callable[[int, str, str], bool], str], ...] = (
    (
        lambda status, _, said: status == 403 and "exceeded quota" in said,
        "raise the quota of the namespace (`kubectl describe quota`), or ask for less with cpus=, memory= and gpus=",
    ),
    (
        lambda status, _, said: status == 403 and "PodSecurity" in said,
        "the namespace allows less than workers need: use the namespace of the chart",
    ),
    (
        lambda status, _, said: status == 403 and "is forbidden: User" in said,
        "give the pool's service account the Role of the chart: launcher.enabled=true",
    ),
    (lambda status, _, __: status == 403, "ask whoever runs the cluster which policy refuses it"),
    (lambda status, _, __: status == 401, "its credentials are not valid, or not any more; they are read again"),
    (lambda status, _, said: status == 404 and "namespaces" in said, "make the namespace, or give another: namespace="),
    (lambda status, _, __: status in (400, 422), "correct the launcher's options"),
    (lambda _, reason, __: reason == "AlreadyExists", "something else has made it"),
    (lambda status, _, __: status == 429 or status >= 500, "it is asked again; see the API server's log"),
)


def advice_for(status: int, reason: str, said: str) -> str:
    """What to do about an answer with this status, reason and message."""
    return next((advice for fits, advice in _ADVICE if fits(status, reason, said)), "see the API server's log")
