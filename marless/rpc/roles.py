"""Which role may call what. A token has one role; what is not in the table is refused."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from enum import StrEnum

from marless.errors import PermissionDeniedError

_PACKAGE = "marless.rpc.v1"


class Role(StrEnum):
    """What a process is to the services that it calls."""

    CLIENT = "client"
    """Submits jobs, watches them, fetches what they leave."""
    OPERATOR = "operator"
    """Looks after an installation; may also do whatever a client may."""
    ACTOR = "actor"
    """A worker that runs environments, and with them the code of third parties."""
    LEARNER = "learner"
    """A worker that trains."""
    SERVICE = "service"
    """One of the four services, as a client of another."""


_CLIENT, _OPERATOR, _ACTOR, _LEARNER, _SERVICE = (frozenset({role}) for role in Role)
_USERS = _CLIENT | _OPERATOR

_BY_SERVICE: Mapping[str, Mapping[str, frozenset[Role]]] = {
    f"{_PACKAGE}.CoordinatorService": {
        "SubmitJob": _USERS,
        "UploadCheckpoint": _USERS,
        "GetJob": _USERS,
        "ListJobs": _USERS,
        "WatchJob": _USERS,
        "StreamLogs": _USERS,
        "CancelJob": _USERS,
        "ResumeJob": _USERS,
        "DeleteJob": _USERS,
        "ListFiles": _USERS,
        "ReadFile": _USERS,
        "GetInfo": _USERS,
    },
    f"{_PACKAGE}.ActorPoolService": {
        "Rollout": _SERVICE,
        "Prewarm": _SERVICE,
        "Scale": _OPERATOR,
        "ListWorkers": _OPERATOR,
        "Work": _ACTOR,
    },
    f"{_PACKAGE}.LearnerPoolService": {
        "OpenJob": _SERVICE,
        "Update": _SERVICE,
        "CloseJob": _SERVICE,
        "Reserve": _SERVICE,
        "Upload": _ACTOR,
        "Work": _LEARNER,
    },
    f"{_PACKAGE}.ParamStoreService": {
        "Publish": _LEARNER | _SERVICE,
        "Get": _ACTOR | _LEARNER | _SERVICE,  # actors only what acting needs, see `check_parts`
        "List": _LEARNER | _SERVICE | _OPERATOR,
        "AcquireEpoch": _SERVICE,
        "DropJob": _SERVICE,
        "Watch": _OPERATOR,
        "Pin": _OPERATOR,
    },
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _OPERATOR},
}
ALLOWED: dict[str, frozenset[Role]] = {
    f"/{service}/{method}": roles for service, methods in _BY_SERVICE.items() for method, roles in methods.items()
}
"""The roles that may call each method, by its full name."""
OPEN = ("/grpc.health.v1.Health/",)
"""Services that anybody may ask who reaches the port."""
caller: ContextVar[Role | None] = ContextVar("caller", default=None)
"""Whose call is being answered; None where no tokens are checked."""


def is_open(method: str) -> bool:
    """True for methods that need no token."""
    return method.startswith(OPEN)


def check(role: Role, method: str) -> None:
    """Raise PermissionDeniedError unless this role may call the method of that full name."""
    allowed = ALLOWED.get(method, frozenset())
    if role not in allowed:
        name = method.rpartition(".")[2]
        needed = f"it takes a token of role {' or '.join(sorted(allowed))}" if allowed else "nobody may"
        raise PermissionDeniedError(f"a token of role {role} may not call {name}; {needed}")


def check_parts(parts: frozenset[str]) -> None:
    """Raise PermissionDeniedError if an actor asks for more of a policy than what it acts with."""
    if caller.get() is Role.ACTOR and not parts <= {"acting"}:
        raise PermissionDeniedError(f"a token of role {Role.ACTOR} reads the part 'acting' of a policy and no other")
