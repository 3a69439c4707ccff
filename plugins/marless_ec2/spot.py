"""Prices of spot instances, for the bill: what AWS asked for a type in a zone when its first machine dialled in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from marless.core.errors import SpecError, UnavailableError
from marless.core.log import structlog
from marless.core.machine import MAX_USD_H, Machine
from marless_ec2.group import client, made
from marless_ec2.settings import Ec2Settings

AGAIN_S = 3600.0
"""Seconds after which AWS is asked again for a type and zone, for machines that come later."""
SPOT = "spot"
Place = tuple[str, str]
"""An instance type and a zone."""
_log = structlog.get_logger("marless.ec2")


class SpotPrices:
    """Asks AWS in the background. Without an answer, or the permission, prices are not known; nothing else depends on
    them."""

    def __init__(self, settings: Ec2Settings) -> None:
        self._settings = settings
        self._usd_h: dict[Place, float] = {}
        self._asked_m: dict[Place, float] = {}
        self._asking: asyncio.Task[None] | None = None

    def usd_h(self, machine: Machine) -> float | None:
        """US dollars per hour of a spot machine, as last known; None for others, and if it is not known."""
        return self._usd_h.get((machine.type, machine.zone)) if machine.market == SPOT else None

    def learn(self, machines: Iterable[str]) -> None:
        """Ask for the prices of machines, each as `Machine.parse` reads it, that were not asked for within an hour."""
        if self._asking and not self._asking.done():
            return
        now_m = time.monotonic()
        places = {place for text in machines if (place := _place(text))}
        wanted = {place for place in places if now_m - self._asked_m.get(place, -AGAIN_S) >= AGAIN_S}
        if wanted:
            # Before the answer, and also if there is none: without the permission, each machine would cause another
            # call.
            self._asked_m |= dict.fromkeys(wanted, now_m)
            self._asking = asyncio.create_task(self._ask(wanted))

    async def close(self) -> None:
        """Ask no more."""
        if self._asking:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, places: set[Place]) -> None:
        try:
            found = await asyncio.to_thread(_asked, places, self._settings)
        except UnavailableError as error:
            _log.warning("spot_prices.not_known", reason=str(error))
            return
        self._usd_h |= {place: usd_h for place, usd_h in found.items() if place in places}
        _log.info("spot_prices.known", **{f"{kind}/{zone}": usd_h for (kind, zone), usd_h in found.items()})


def _place(text: str) -> Place | None:
    """Where a machine is, if its price is that of spot instances."""
    with suppress(SpecError):
        machine = Machine.parse(text)
        if machine.market == SPOT and machine.type and machine.zone:
            return machine.type, machine.zone
    return None


def _asked(places: set[Place], settings: Ec2Settings) -> dict[Place, float]:
    """The present prices, of these types in these zones; raises UnavailableError."""
    now = datetime.now(UTC)  # as both ends of a period: the prices of now
    given = {
        "InstanceTypes": sorted({kind for kind, _ in places}),
        "Filters": [{"Name": "availability-zone", "Values": sorted({zone for _, zone in places})}],
        "ProductDescriptions": ["Linux/UNIX"],
    }

    def prices() -> list[dict[str, Any]]:  # Any: JSON
        aws = client("ec2", settings.region, settings.aws_s)
        pages = aws.get_paginator("describe_spot_price_history").paginate(**given, StartTime=now, EndTime=now)
        return [each for page in pages for each in page["SpotPriceHistory"]]

    found = made(prices, "ec2:describe_spot_price_history", settings.where)
    newest = sorted(found, key=lambda each: each["Timestamp"])
    told = {(each["InstanceType"], each["AvailabilityZone"]): float(each["SpotPrice"]) for each in newest}
    return {place: usd_h for place, usd_h in told.items() if 0 <= usd_h <= MAX_USD_H}
