"""Access control: which role may call which gRPC method. A token has one role; methods not in the table are refused."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from enum import StrEnum

from marless.core.errors import PermissionDeniedError

_PACKAGE = "marless.rpc.v1"


class Role(StrEnum):
    """The role of a process towards the services that it calls."""

    CLIENT = "client"
    """Submits and watches jobs, and downloads their files."""
    OPERATOR = "operator"
    """Administers an installation; may also do everything that a client may."""
    ACTOR = "actor"
    """A worker that runs environments, and so third-party code."""
    LEARNER = "learner"
    """A worker that trains."""
    SERVICE = "service"
    """One of the four services, as a client of another."""


# In the order in which `Role` lists its members.
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
        "ListMachines": _SERVICE | _OPERATOR,
        "Work": _ACTOR,
        "Relay": _ACTOR,
        "Host": _ACTOR,
    },
    f"{_PACKAGE}.LearnerPoolService": {
        "OpenJob": _SERVICE,
        "Update": _SERVICE,
        "Gradient": _SERVICE,
        "CloseJob": _SERVICE,
        "Reserve": _SERVICE,
        "ListWorkers": _OPERATOR,
        "ListMachines": _SERVICE | _OPERATOR,
        "Upload": _ACTOR,
        "UploadMany": _ACTOR,
        "Work": _LEARNER,
        "Host": _LEARNER,
        "ReadRef": _LEARNER,  # and only the worker that runs the task that a file is lent for
        "WriteRef": _LEARNER,
    },
    f"{_PACKAGE}.ParamStoreService": {
        "Publish": _ACTOR | _LEARNER | _SERVICE,  # actors: only the carries of lanes, see `check_policies`
        "Get": _ACTOR | _LEARNER | _SERVICE,  # actors: only what they act with and carries, see `check_parts`
        "Aggregate": _SERVICE,
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
"""Prefixes of methods that may be called without a token."""
READ_BY_ACTORS = frozenset({"acting", "carry"})
"""The parts of versions that actors may read: what they act with, and the carries of lanes."""
caller: ContextVar[Role | None] = ContextVar("caller", default=None)
"""Role of the caller whose request is being handled; None if tokens are not checked."""


def check(role: Role, method: str) -> None:
    """Raise PermissionDeniedError unless this role may call the method, given by its full name."""
    allowed = ALLOWED.get(method, frozenset())
    if role not in allowed:
        name = method.rpartition(".")[2]
        needed = f"it takes a token of role {' or '.join(sorted(allowed))}" if allowed else "nobody may"
        raise PermissionDeniedError(f"a token of role {role} may not call {name}; {needed}")


def check_parts(parts: frozenset[str]) -> None:
    """Raise PermissionDeniedError if the caller is an actor and asks for more than what it acts with, and carries."""
    if caller.get() is Role.ACTOR and not parts <= READ_BY_ACTORS:
        raise PermissionDeniedError(
            f"a token of role {Role.ACTOR} reads the part 'acting' of a policy, 'carry' of a lane, and no other"
        )


def check_policies(only_lanes: bool) -> None:
    """Raise PermissionDeniedError if the caller is an actor and publishes anything but the carries of lanes."""
    if caller.get() is Role.ACTOR and not only_lanes:
        raise PermissionDeniedError(f"a token of role {Role.ACTOR} publishes the carries of lanes, and no policy")
