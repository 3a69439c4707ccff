"""What an API server stores, as far as the launcher sees it: versions, conflicts, watches, deletions and owners.

Answers and messages are those of kube-apiserver, from which they were recorded.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Json = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class StatusError(Exception):
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "details": details, "code": code,
        }  # fmt: skip


def now(later_s: int = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class ObjectStore:
    """The Pods and Secrets of a namespace, and the events of their changes. For one event loop."""

    objects: dict[str, dict[str, Json]] = field(default_factory=lambda: {"pods": {}, "secrets": {}})
    version: int = 100
    oldest: int = 100
    """Events up to this version are compacted away."""
    events: list[tuple[int, str, str, Json]] = field(default_factory=list)
    """Version, kind of event, resource, object."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ever: dict[str, list[Json]] = field(default_factory=lambda: {"pods": [], "secrets": []})
    """What was ever created."""
    before_removal: list[Callable[[str, str], None]] = field(default_factory=list)

    def create(self, resource: str, sent: Json, *, dry_run: bool = False) -> Json:
        name = sent["metadata"]["name"]
        if not _NAME.fullmatch(name):
            rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
            text = f'{_kind(resource)} "{name}" is invalid: metadata.name: Invalid value: "{name}": {rule}'
            raise StatusError(422, "Invalid", text)
        if name in self.objects[resource]:
            raise StatusError(409, "AlreadyExists", f'{resource} "{name}" already exists', name=name, kind=resource)
        made = copy.deepcopy(sent)
        made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "namespace": "marless"}
        if resource == "pods":
            made["status"] = {"phase": "Pending", "qosClass": "Burstable"}
        if resource == "secrets":
            plain = made.pop("stringData", {})
            made["data"] = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        if dry_run:
            return made
        self.objects[resource][name] = made
        self.ever[resource].append(made)
        self._tell("ADDED", resource, made)
        return copy.deepcopy(made)

    def get(self, resource: str, name: str) -> Json:
        if name not in self.objects[resource]:
            raise StatusError(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource)
        return self.objects[resource][name]

    def change(self, resource: str, name: str, change: Callable[[Json], None]) -> None:
        """Change an object, if it is still there."""
        if name in self.objects[resource]:
            new = copy.deepcopy(self.objects[resource][name])
            change(new)
            self.objects[resource][name] = new
            self._tell("MODIFIED", resource, new)

    def delete(self, resource: str, name: str, grace_s: int | None) -> Json:
        """Delete an object; a Pod with a node stays until its node has ended it."""
        found = self.get(resource, name)
        if resource == "pods" and found["spec"].get("nodeName") and grace_s != 0:
            grace_s = found["spec"]["terminationGracePeriodSeconds"] if grace_s is None else grace_s
            new = {"deletionTimestamp": now(grace_s), "deletionGracePeriodSeconds": grace_s}
            if grace_s < found["metadata"].get("deletionGracePeriodSeconds", math.inf):  # it is only ever shortened
                self.change(resource, name, lambda pod: pod["metadata"].update(new))
            return copy.deepcopy(self.objects[resource][name])
        self.remove(resource, name)
        return found

    def remove(self, resource: str, name: str) -> None:
        if found := self.objects[resource].pop(name, None):
            for each in self.before_removal:
                each(resource, name)
            self._tell("DELETED", resource, copy.deepcopy(found))
            self._collect_owned(found["metadata"]["uid"])

    def compact(self) -> None:
        """Forget all events so far."""
        self.oldest, self.events = self.version, []
        self._wake()

    def bookmark(self) -> None:
        """Tell all watches the newest version, as a server does about once a minute."""
        self.version += 1
        self.events.append((self.version, "BOOKMARK", "", {"metadata": {"resourceVersion": str(self.version)}}))
        self._wake()

    def since(self, version: int, resource: str) -> list[tuple[int, str, Json]]:
        if version < self.oldest:
            text = f"too old resource version: {version} ({self.version})"
            raise StatusError(410, "Expired", text)
        return [(at, kind, of) for at, kind, what, of in self.events if at > version and what in ("", resource)]

    def _collect_owned(self, uid: str) -> None:
        """What the garbage collector does."""
        for resource, found in self.objects.items():
            for name, each in list(found.items()):
                if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", ())):
                    self.delete(resource, name, None)

    def _tell(self, kind: str, resource: str, changed: Json) -> None:
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, resource, copy.deepcopy(changed)))
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def selected(found: Json, selector: str) -> bool:
    labels = found["metadata"].get("labels") or {}
    pairs = [each.partition("=") for each in selector.split(",") if each]
    return all(labels.get(key) == value if sign else key in labels for key, sign, value in pairs)


def _kind(resource: str) -> str:
    return "Pod" if resource == "pods" else "Secret"
