"""Files of spot prices: our own CSV, and the history of one machine as AWS tells it.

    aws ec2 describe-spot-price-history --instance-types c6a.4xlarge --availability-zone us-east-1a \\
        --product-descriptions Linux/UNIX --start-time 2026-10-01 > history.json

AWS records prices, not kills. With a bid, a machine is taken away where the price is above it, as AWS did until 2017.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Any

from marless.core.errors import SpecError
from marless.cost.billing.machines import MICRO
from marless.cost.billing.spot import SpotPrice, SpotSeries

COLUMNS = ("time", "usd_h")
KILLED = "killed"
MOST_ROWS = 100_000
MOST_BYTES = 2**26
MOST_USD_H = 10_000
_MACHINE = ("InstanceType", "AvailabilityZone", "ProductDescription")


def read_spot_prices(path: Path, bid: Decimal | None = None) -> SpotSeries:
    """Read prices from a CSV file or, if it is JSON, from an answer of AWS.

    A CSV file has the columns time (seconds), usd_h and, if machines are killed, killed (0 or 1); lines that begin with
    # are comments. With a bid, in US dollars an hour, machines are also killed by every price above it. Raises
    SpecError for a file that cannot be read or makes no sense, and for a bid below all prices.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SpecError(f"{path}: is larger than {MOST_BYTES >> 20} MiB; give a shorter time")
        text = path.read_text("utf-8")
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror}); give a file of spot prices") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None
    found, instance = _of_aws(text, path) if text.lstrip().startswith("{") else (_of_csv(text, path), "")
    if not found or len(found) > MOST_ROWS:
        raise SpecError(f"{path}: has {len(found):,} rows; give 1 to {MOST_ROWS:,}")
    for before, after in pairwise(found):
        if after.time_us <= before.time_us:
            raise SpecError(f"{path}: time {after.time_us / MICRO:g} follows {before.time_us / MICRO:g}; sort rows")
    if bid is not None:
        found = _with_bid(found, bid, path)
    if found[-1].killed:
        raise SpecError(f"{path}: ends with a kill, after which there is no machine; add a row without one")
    return SpotSeries(tuple(found), instance)


def _with_bid(rows: Iterable[SpotPrice], bid: Decimal, path: Path) -> list[SpotPrice]:
    """The rows until the last one at which the bid buys a machine."""
    if not bid.is_finite():
        raise SpecError(f"--bid {bid} is no price; give US dollars an hour")
    found = [SpotPrice(time_us=row.time_us, usd_h=row.usd_h, killed=row.killed or row.usd_h > bid) for row in rows]
    while found and found[-1].killed:
        found.pop()
    if not found:
        raise SpecError(f"{path}: no price is as low as the bid of {bid} US dollars an hour; raise --bid")
    return found


def _of_csv(text: str, path: Path) -> list[SpotPrice]:
    try:
        rows = csv.DictReader(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
        missing = [each for each in COLUMNS if each not in (rows.fieldnames or ())]
        if missing:
            raise SpecError(f"{path}: has no column {missing[0]!r}; name the columns time,usd_h,killed")
        return [_row(row, f"{path}: row {number}") for number, row in enumerate(rows, 1)]
    except csv.Error as error:
        raise SpecError(f"{path}: cannot be read as CSV: {error}") from None


def _row(row: Mapping[str, str], where: str) -> SpotPrice:
    try:
        time_s, usd_h = float(row["time"]), Decimal(row["usd_h"].strip())
        killed = {"": False, "0": False, "1": True}[(row.get(KILLED) or "").strip()]
    except (ValueError, InvalidOperation, KeyError, TypeError, AttributeError):
        raise SpecError(f"{where}: give time and usd_h as numbers, and killed as 0 or 1") from None
    return _price(time_s, usd_h, where, killed=killed)


def _price(time_s: float, usd_h: Decimal, where: str, *, killed: bool = False) -> SpotPrice:
    if not (0 <= time_s < 1e10 and usd_h.is_finite() and 0 <= usd_h <= MOST_USD_H):
        raise SpecError(f"{where}: time must be 0 to 1e10 seconds, and usd_h 0 to {MOST_USD_H:,} US dollars")
    return SpotPrice(time_us=round(time_s * MICRO), usd_h=round(usd_h, 12), killed=killed)


def _of_aws(text: str, path: Path) -> tuple[list[SpotPrice], str]:
    """The prices of an answer to DescribeSpotPriceHistory, which begins with the newest, in ascending order; and the
    type of machine.
    """
    try:
        entries: list[Mapping[str, Any]] = json.loads(text)["SpotPriceHistory"]
        machines = {tuple(str(each[name]) for name in _MACHINE) for each in entries}
        # Of two prices of one moment, the first one counts, as the newest is first [inferred].
        prices = {_seconds(each["Timestamp"]): Decimal(each["SpotPrice"]) for each in reversed(entries)}
    except (ValueError, InvalidOperation, KeyError, TypeError, RecursionError):
        raise SpecError(
            f"{path}: is no answer of `aws ec2 describe-spot-price-history`; give one as JSON, or a CSV file"
        ) from None
    if len(machines) > 1:
        some = " and ".join(" ".join(each) for each in sorted(machines)[:2])
        raise SpecError(
            f"{path}: has prices of {len(machines)} machines, such as {some}; ask AWS for one, with --instance-types, "
            "--availability-zone and --product-descriptions"
        )
    found = [_price(time_s, usd_h, f"{path}: price {usd_h}") for time_s, usd_h in sorted(prices.items())]
    return found, next((instance for instance, _, _ in machines), "")


def _seconds(timestamp: str) -> float:
    found = datetime.fromisoformat(timestamp)
    if found.tzinfo is None or not math.isfinite(found.timestamp()):
        raise ValueError(timestamp)
    return found.timestamp()
