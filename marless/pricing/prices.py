"""The price table: ours, dated, with a user's own merged over it. Data only; nothing is looked up anywhere.

A job holds prices, never the path of a file of them: whoever reads the job file reads that file too.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError

from marless import documents
from marless.algos.base import Strict
from marless.errors import SpecError
from marless.mistakes import sentences

if TYPE_CHECKING:  # a spec holds prices, not the other way round
    from marless.spec import FunctionSize, FunctionsSpec

OURS = Path(__file__).with_name("prices.yaml")
FIELD = "bill.prices"
"""Where a job holds prices of its own."""
Usd = Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=40, decimal_places=30)]
"""Bounded on both sides: amounts are computed exactly, so that the digits of an exponent would be all written out."""


class _Section(Strict):
    """Prices of one service, and where they are from."""

    date: datetime.date = Field(description="when they were last compared with public tables")
    source: str


class LambdaRates(Strict):
    """USD per GB-second."""

    on_demand: Usd = Field(description="of work, and of starts")
    provisioned: Usd = Field(description="of work on provisioned concurrency")
    ready: Usd = Field(description="of provisioned concurrency, for as long as it is provisioned")


class LambdaPrices(_Section):
    """Functions by the millisecond."""

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
        """Of the architecture in use."""
        return self.rates[self.architecture]


class FargatePrices(_Section):
    """Containers by the second."""

    vcpu_h: Usd
    gb_h: Usd
    minimum_s: int = Field(ge=0, description="of each container")


class InstancePrice(Strict):
    """One kind of machine."""

    usd_h: Usd
    vcpus: int = Field(ge=1)
    memory_gb: float = Field(gt=0)


class Ec2Prices(_Section):
    """Machines by the second."""

    minimum_s: int = Field(ge=0, description="of each machine")
    serverful: str = Field(description="family of which a serverful run gets the smallest machine that fits")
    instance: str = Field(description="what backend ec2 rents")
    instances: dict[str, InstancePrice]


class RedisPrices(_Section):
    """The node that keeps the versions."""

    node: str
    granularity_s: int = Field(ge=1, description="its time is rounded up to it, over the whole job")
    nodes: dict[str, Usd] = Field(description="USD per hour")


class Prices(Strict):
    """Everything that a bill depends on beside a job's records and spec."""

    currency: Literal["USD"]
    region: str
    backend: Literal["lambda", "fargate", "ec2"] = Field(description="what bills functions in accounting `billed`")
    keep_alive_s: float = Field(ge=0, description="functions are released when nothing has used them for so long")
    lambda_: LambdaPrices = Field(alias="lambda")
    fargate: FargatePrices
    ec2: Ec2Prices
    redis: RedisPrices
    _file: str = PrivateAttr("")

    @property
    def file(self) -> str:
        """Where a price that is missing is to be added."""
        return self._file or f"a price file of your own, which `{FIELD}` or --prices names"

    def instance(self, name: str) -> InstancePrice:
        """A machine's price; raises SpecError that says where to add it."""
        if name not in self.ec2.instances:
            raise SpecError(
                f"no price for instance type {name!r}; add `ec2: {{instances: {{{name}: {{usd_h: …, vcpus: …, "
                f"memory_gb: …}}}}}}` to {self.file}"
            )
        return self.ec2.instances[name]

    def redis_h(self) -> Decimal:
        """USD per hour of the Redis node; raises SpecError that says where to add it."""
        node = self.redis.node
        if node not in self.redis.nodes:
            raise SpecError(
                f"no price for Redis node type {node!r}; add `redis: {{nodes: {{{node}: …}}}}` to {self.file}"
            )
        return self.redis.nodes[node]

    def family(self) -> list[tuple[str, InstancePrice]]:
        """Machines that a serverful run may be given, smallest first; raises SpecError if there is none."""
        name = self.ec2.serverful
        found = [(each, price) for each, price in self.ec2.instances.items() if each.partition(".")[0] == name]
        if not found:
            raise SpecError(
                f"no price for any instance type {name}.*; add `ec2: {{instances: {{{name}.large: {{usd_h: …, "
                f"vcpus: …, memory_gb: …}}}}}}` to {self.file}"
            )
        return sorted(found, key=lambda each: (each[1].usd_h, each[0]))


def load(path: str | None = None) -> Prices:
    """Our prices, with those of a file in place of ours where it has any; raises SpecError with a line per mistake."""
    return merged(read(path), path) if path else merged(None)


def read(path: str) -> dict[str, Any]:  # Any: JSON
    """The prices of a user's file, as a job holds them; raises SpecError with a line per mistake."""
    document = _read(Path(path))
    if not isinstance(document, Mapping):
        raise SpecError(f"{path}: prices are a mapping of sections (lambda, fargate, ec2, redis)")
    merged(document, path)
    held: dict[str, Any] = json.loads(json.dumps(document, default=str))  # dates become text
    return held


def merged(theirs: Mapping[str, Any] | None, source: str = FIELD) -> Prices:  # Any: JSON
    """Our prices, with those of a job or a file (`source`) in place of ours; raises SpecError, a line per mistake."""
    try:
        prices = Prices.model_validate(_merged(_ours(), theirs or {}))
    except ValidationError as error:
        raise SpecError("\n".join(f"{source}: {each}" for each in sentences(error, Prices, {}))) from None
    if theirs is not None:
        prices._file = source
    return prices


def check_sizes(functions: FunctionsSpec, prices: Prices) -> None:
    """Refuse functions that the backend cannot run; raises SpecError before anything starts."""
    if prices.backend != "lambda":
        return
    for name, size in (("actor", functions.actor), ("learner", functions.learner)):
        if (needed := lambda_memory_mb(size, prices)) > prices.lambda_.max_memory_mb:
            raise SpecError(
                f"functions.{name}: {size.vcpus:g} vCPUs and {size.memory_mb} MB need {needed} MB of a Lambda, which "
                f"has at most {prices.lambda_.max_memory_mb}; make it smaller or choose another backend in a price file"
            )


def lambda_memory_mb(size: FunctionSize, prices: Prices) -> int:
    """What a Lambda must be given to have this size: vCPUs come with memory only."""
    return max(size.memory_mb, -int(-size.vcpus * prices.lambda_.memory_mb_per_vcpu // 1))


@cache
def _ours() -> Any:  # Any: YAML
    """Read once: that takes longer than all else that is checked of a job."""
    return _read(OURS)


def _read(path: Path) -> Any:  # Any: YAML
    return documents.from_yaml(path, "price file") or {}


def _merged(ours: Any, theirs: Any) -> Any:  # Any: YAML
    """Sections are merged field by field; everything else is replaced."""
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        return theirs
    return {key: _merged(ours[key], theirs[key]) if key in ours and key in theirs else theirs.get(key, ours.get(key))
            for key in [*ours, *(key for key in theirs if key not in ours)]}  # fmt: skip
