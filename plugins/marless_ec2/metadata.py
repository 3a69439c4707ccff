"""What an EC2 instance reads about itself from its metadata service (IMDSv2): identity, and notices of its end."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from marless.core.log import structlog
from marless.fleet.launchers.hosts.options import Identity, Notice

ADDRESS = "http://169.254.169.254"
POLL_S = 5.0
"""Seconds between two looks for notices; AWS gives two minutes' notice, and recommends this interval."""
HOOK_S = 240.0
"""Seconds that an instance has in `Terminating:Wait`: less than the 300 of its group's hook."""
_ANSWER_S = 2.0
_TOKEN_S = 21_600
_LEAVING = {"Terminated": "its group ends it", "Standby": "it goes to standby", "Detached": "it leaves its group"}
_INTERRUPTED = {"terminate": "ends", "stop": "stops", "hibernate": "hibernates"}
_log = structlog.get_logger("marless.host")


class Metadata:
    """Reads from a metadata service; raises OSError if there is none."""

    def __init__(self, address: str = ADDRESS) -> None:
        self._address = address.rstrip("/")
        self._token = ""
        # Never through a proxy: the address is that of the instance itself.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str | None:
        """The text at a path; None if there is none."""
        # A second time with a new token, because the service answers 401 to one that has expired.
        for fresh in (not self._token, True):
            if fresh:
                self._token = self._ask("PUT", "api/token", "X-aws-ec2-metadata-token-ttl-seconds", f"{_TOKEN_S}")
            try:
                return self._ask("GET", path, "X-aws-ec2-metadata-token", self._token)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401 or fresh:
                    raise
        return None

    def _ask(self, method: str, path: str, header: str, value: str) -> str:
        request = urllib.request.Request(f"{self._address}/latest/{path}", method=method, headers={header: value})
        with self._opener.open(request, timeout=_ANSWER_S) as answer:
            text: str = answer.read(2**16).decode(errors="replace")
        return text


class InstanceMetadata:
    """An EC2 instance, as `marless.fleet.launchers.hosts.options.Surroundings`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def identify(self) -> Identity:
        """The instance's id, type, market and zone; tries again until the service answers."""
        while True:
            try:
                return await asyncio.to_thread(self._identity)
            except (OSError, ValueError, KeyError) as error:
                _log.warning("metadata.not_read", reason=f"{error}")
            await asyncio.sleep(POLL_S)

    async def notices(self) -> AsyncIterator[Notice]:
        """The notice of the first reason to leave, and again if a nearer end is announced."""
        seen: set[str] = set()
        while True:
            try:
                found = await asyncio.to_thread(self._found)
            except (OSError, ValueError) as error:
                _log.warning("metadata.not_read", reason=f"{error}")
                found = []
            for notice in found:
                # An announcement can be read until the machine ends; it is passed on once.
                if notice.why not in seen:
                    seen.add(notice.why)
                    yield notice
            await asyncio.sleep(POLL_S)

    def _identity(self) -> Identity:
        document = json.loads(self._metadata.get("dynamic/instance-identity/document") or "")
        market = self._metadata.get("meta-data/instance-life-cycle") or "on-demand"
        facts = {
            "id": document["instanceId"],
            "provider": "aws",
            "type": document["instanceType"],
            "market": market if market == "spot" else "on-demand",
            "zone": document["availabilityZone"],
        }
        if began := document.get("pendingTime"):
            facts["launched_s"] = f"{_time_of(began).timestamp():.0f}"
        return Identity(document["instanceId"], ",".join(f"{key}={value}" for key, value in facts.items()))

    def _found(self) -> list[Notice]:
        """What is announced now, the surest end first."""
        found = []
        if action := self._metadata.get("meta-data/spot/instance-action"):
            found.append(_interruption(action))
        state = (self._metadata.get("meta-data/autoscaling/target-lifecycle-state") or "").strip()
        if state in _LEAVING:
            found.append(Notice(_LEAVING[state], HOOK_S if state == "Terminated" else 0.0))
        if self._metadata.get("meta-data/events/recommendations/rebalance"):
            found.append(Notice("AWS expects to interrupt this spot instance, and recommends another"))
        return found


def _interruption(text: str) -> Notice:
    try:
        action = json.loads(text)
        left_s = (_time_of(action["time"]) - datetime.now(UTC)).total_seconds()
        return Notice(f"AWS {_INTERRUPTED[action['action']]} this spot instance", max(1.0, left_s))
    except (ValueError, KeyError, TypeError):
        return Notice("AWS interrupts this spot instance")


def _time_of(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
