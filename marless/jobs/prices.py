"""The accountings, and the price table: marless's own, with dates and sources, overridden by a user's prices.

Nothing is looked up online. A submitted job holds prices, never the path of a price file: the client that reads the job
file also reads that file.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, ValidationError

from marless.core import documents
from marless.core.errors import SpecError
from marless.core.machine import MachineRecord
from marless.core.validation import Strict, validation_sentences

if TYPE_CHECKING:
    from marless.core.settings import FunctionSize, FunctionsSpec

Accounting: TypeAlias = Literal["billed", "paper", "serverful", "machines"]
"""A way in which the cost of a job is counted."""
ACCOUNTINGS: tuple[Accounting, ...] = ("paper", "billed", "serverful")
"""Those that follow from the functions alone, so that they can be estimated, replayed and compared."""
ALL_ACCOUNTINGS: tuple[Accounting, ...] = (*ACCOUNTINGS, "machines")
BilledTime: TypeAlias = Literal["duration", "cpu"]
"""Which seconds of a function are charged; see `marless.jobs.usage`."""
BilledStart: TypeAlias = Literal["function", "process"]
"""Who starts: each function, as in a container of its own, or each process in which functions ran."""
OURS = Path(__file__).with_name("prices.yaml")
FIELD = "bill.prices"
"""The field of a job with its own prices."""
Usd = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=40, decimal_places=30)]
"""US dollars. Digits are bounded, because exact arithmetic would expand large exponents to all their digits."""


class _Section(Strict):
    """Base of the prices of one service, with their date and source."""

    date: datetime.date = Field(description="when they were last compared with public tables")
    source: str


class LambdaRates(Strict):
    """AWS Lambda's rates in US dollars per GB-second."""

    on_demand: Usd = Field(description="of work, and of starts")
    provisioned: Usd = Field(description="of work on provisioned concurrency")
    ready: Usd = Field(description="of provisioned concurrency, for as long as it is provisioned")


class LambdaPrices(_Section):
    """AWS Lambda: functions billed by the millisecond."""

    architecture: Literal["x86", "arm"]
    rates: dict[Literal["x86", "arm"], LambdaRates]
    request: Usd = Field(description="USD each")
    granularity_ms: int = Field(ge=1, description="durations are rounded up to it")
    memory_mb_per_vcpu: int = Field(ge=1, description="memory that comes with one vCPU, and cannot be had apart")
    max_memory_mb: int = Field(ge=1)
    max_s: float = Field(gt=0, description="longest execution")
    warm: Literal["provisioned", "free"] = Field(description="how pre-warmed actors are had")

    @cached_property
    def rate(self) -> LambdaRates:
        """The rates of the selected architecture."""
        return self.rates[self.architecture]


class FargatePrices(_Section):
    """AWS Fargate: containers billed by the second, in US dollars per hour."""

    vcpu_h: Usd
    gb_h: Usd
    minimum_s: int = Field(ge=0, description="of each container")


class InstancePrice(Strict):
    """One EC2 instance type: US dollars per hour, vCPUs and memory."""

    usd_h: Usd
    vcpus: int = Field(ge=1)
    memory_gb: float = Field(gt=0)


class Ec2Prices(_Section):
    """AWS EC2: machines billed by the second."""

    minimum_s: int = Field(ge=0, description="of each machine")
    serverful: str = Field(description="family of which a serverful run gets the smallest machine that fits")
    instance: str = Field(description="what backend ec2 rents")
    instances: dict[str, InstancePrice]


class MachinePrices(_Section):
    """Machines that workers ran on, for accounting `machines`."""

    minimum_s: int = Field(ge=0, description="of each machine that a provider charges")
    usd_h: dict[str, Usd] = Field(
        description="USD per hour of TYPE/MARKET/ZONE, TYPE/MARKET or TYPE; wins over what hosts say, and ec2.instances"
    )


class RedisPrices(_Section):
    """The Redis node that stores the policy versions."""

    node: str
    granularity_s: int = Field(ge=1, description="its time is rounded up to it, over the whole job")
    nodes: dict[str, Usd] = Field(description="USD per hour")


class ServicesPrices(_Section):
    """The host of the coordinator, the pools and the parameter store, which functions and machines need alike."""

    usd_h: Usd = Field(description="USD per hour; only comparisons count it, on both sides")


class Prices(Strict):
    """The whole price table: everything that a bill depends on besides a job's records and spec."""

    currency: Literal["USD"]
    region: str
    backend: Literal["lambda", "fargate", "ec2"] = Field(description="what bills functions in accounting `billed`")
    keep_alive_s: float = Field(ge=0, description="functions are released when nothing has used them for so long")
    lambda_: LambdaPrices = Field(alias="lambda")
    fargate: FargatePrices
    ec2: Ec2Prices
    redis: RedisPrices
    services: ServicesPrices
    machines: MachinePrices
    _file: str = PrivateAttr("")

    @property
    def file(self) -> str:
        """The file to which a missing price should be added, for error messages."""
        return self._file or f"a price file of your own, which `{FIELD}` or --prices names"

    def instance(self, name: str) -> InstancePrice:
        """The price of an instance type; raises SpecError, saying where to add it, if it is missing."""
        if name not in self.ec2.instances:
            raise SpecError(
                f"no price for instance type {name!r}; add `ec2: {{instances: {{{name}: {{usd_h: …, vcpus: …, "
                f"memory_gb: …}}}}}}` to {self.file}"
            )
        return self.ec2.instances[name]

    def machine_h(self, machine: MachineRecord) -> Decimal | None:
        """US dollars per hour of a machine that ran; None if nobody knows them.

        The table's price wins over that of the host, which counts up to the list price of a known type.
        """
        # The most exact price comes first: a spot price holds in one zone, a price of a type anywhere.
        for end in (f"/{machine.market}/{machine.zone}", f"/{machine.market}", ""):
            if machine.type and (given := self.machines.usd_h.get(f"{machine.type}{end}")) is not None:
                return given
        rented = machine.provider in ("", "aws") and machine.market != "own"
        listed = self.ec2.instances.get(machine.type) if rented else None
        if listed and machine.market in ("", "on-demand"):
            return listed.usd_h
        # By way of the text: Decimal of a float has all digits of its binary fraction, 0.1 among them.
        said = None if machine.usd_h is None else Decimal(str(machine.usd_h))
        return min(said, listed.usd_h) if said is not None and listed else said

    def redis_h(self) -> Decimal:
        """US dollars per hour of the Redis node; raises SpecError, saying where to add it, if it is missing."""
        node = self.redis.node
        if node not in self.redis.nodes:
            raise SpecError(
                f"no price for Redis node type {node!r}; add `redis: {{nodes: {{{node}: …}}}}` to {self.file}"
            )
        return self.redis.nodes[node]

    def family(self) -> list[tuple[str, InstancePrice]]:
        """Instance types for a serverful run, cheapest first; raises SpecError if there is none."""
        name = self.ec2.serverful
        found = [(each, price) for each, price in self.ec2.instances.items() if each.partition(".")[0] == name]
        if not found:
            raise SpecError(
                f"no price for any instance type {name}.*; add `ec2: {{instances: {{{name}.large: {{usd_h: …, "
                f"vcpus: …, memory_gb: …}}}}}}` to {self.file}"
            )
        return sorted(found, key=lambda each: (each[1].usd_h, each[0]))


def load(path: str | None = None) -> Prices:
    """marless's prices, overridden by those of a file; raises SpecError with one line per error."""
    return merged(read(path), path) if path else merged(None)


def read(path: str) -> dict[str, Any]:  # Any: JSON
    """Read a user's price file, in the form stored in a job; raises SpecError with one line per error."""
    document = documents.from_yaml(Path(path), "price file") or {}
    if not isinstance(document, Mapping):
        raise SpecError(f"{path}: prices are a mapping of sections (lambda, fargate, ec2, redis)")
    merged(document, path)
    held: dict[str, Any] = json.loads(json.dumps(document, default=str))  # dates become text
    return held


def merged(theirs: Mapping[str, Any] | None, source: str = FIELD) -> Prices:  # Any: JSON
    """marless's prices, overridden by those of a job or file (`source`); raises SpecError with one line per error."""
    try:
        prices = Prices.model_validate(_merged(_ours(), theirs or {}))
    except ValidationError as error:
        raise SpecError("\n".join(f"{source}: {each}" for each in validation_sentences(error, Prices, {}))) from None
    if theirs is not None:
        prices._file = source
    return prices


def check_sizes(functions: FunctionsSpec, prices: Prices) -> None:
    """Raises SpecError for functions that the backend cannot run, before anything starts."""
    if prices.backend != "lambda":
        return
    for name, size in (("actor", functions.actor), ("learner", functions.learner)):
        if (needed := lambda_memory_mb(size, prices)) > prices.lambda_.max_memory_mb:
            raise SpecError(
                f"functions.{name}: {size.vcpus:g} vCPUs and {size.memory_mb} MB need {needed} MB of a Lambda, which "
                f"has at most {prices.lambda_.max_memory_mb}; make it smaller or choose another backend in a price file"
            )


def lambda_memory_mb(size: FunctionSize, prices: Prices) -> int:
    """Memory of a Lambda with at least this size, in MB: vCPUs are allocated in proportion to memory."""
    return max(size.memory_mb, -int(-size.vcpus * prices.lambda_.memory_mb_per_vcpu // 1))


@cache
def _ours() -> Any:  # Any: YAML
    """Cached, because reading takes longer than all other checks of a job."""
    return documents.from_yaml(OURS, "price file")


def _merged(ours: Any, theirs: Any) -> Any:  # Any: YAML
    """Merge mappings field by field; all other values are replaced."""
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        return theirs
    return {key: _merged(ours[key], theirs[key]) if key in ours and key in theirs else theirs.get(key, ours.get(key))
            for key in [*ours, *(key for key in theirs if key not in ours)]}  # fmt: skip
