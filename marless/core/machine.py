"""`Machine`: what is known of the machine that a worker runs on, as those say who started the worker; `MachineRecord`:
what it did for a job.

As text, a machine is `key=value,…`: the option `--machine` of workers, and the variable MARLESS_MACHINE (docs/cost.md).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from marless.core.documents import dataclass_of
from marless.core.errors import CorruptError, SpecError, shown, told

Market = Literal["", "on-demand", "spot", "reserved", "own"]
MARKETS: tuple[Market, ...] = get_args(Market)
VARIABLE = "MARLESS_MACHINE"
MACHINES = "machines.json"
"""Name of the file of a run folder that holds a `Kept`."""
MAX_VCPUS = 4096
MAX_USD_H = 1000
MAX_TEXT = 64
_TEXT = re.compile(r"[\w.:/@-]*", re.ASCII)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ID_DIGITS = 12
_DEVICE_FILES = Path("/dev")
_EXAMPLE = "id=i-0abc,provider=aws,type=c6a.4xlarge,market=spot,zone=us-east-1a,usd_h=0.25"


def gpus_of_machine() -> int:
    """GPUs of NVIDIA for which this machine, or container, has device files, whether or not torch can use them."""
    return sum(path.name.removeprefix("nvidia").isdecimal() for path in _DEVICE_FILES.glob("nvidia*"))


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has where its affinity is limited."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine, in the words of whoever started a worker on it; raises SpecError for values that no machine has."""

    id: str = ""
    """Its unique name, such as an instance id; "" if nobody told it."""
    provider: str = ""
    """Who is paid for it, such as aws; "" if not known, as for all that follow."""
    type: str = ""
    """Instance type, such as c6a.4xlarge."""
    market: str = ""
    """on-demand, spot, reserved, or own."""
    zone: str = ""
    vcpus: float = 0.0
    """vCPUs of the whole machine; 0 if not known."""
    usd_h: float | None = None
    """US dollars per hour of the whole machine when it was launched; None if not known."""
    launched_s: float = 0.0
    """Unix time from which it costs; 0 if not known."""

    def __post_init__(self) -> None:
        for key in ("id", "provider", "type", "market", "zone"):
            value: str = getattr(self, key)
            if len(value) > MAX_TEXT or not _TEXT.fullmatch(value):
                raise SpecError(
                    f"{key} of a machine is {shown(value)}: give up to {MAX_TEXT} of A-Z a-z 0-9 . _ : / @ -"
                )
        if self.market not in MARKETS:
            raise SpecError(f"market of a machine is {shown(self.market)}: give one of {', '.join(MARKETS[1:])}")
        for key, most in (("vcpus", MAX_VCPUS), ("usd_h", MAX_USD_H), ("launched_s", math.inf)):
            number: float | None = getattr(self, key)
            # Not `number < 0`, with which NaN would pass.
            if number is not None and not (0 <= number <= most and number < math.inf):
                limit = f" of at most {most}" if most < math.inf else ""
                raise SpecError(f"{key} of a machine is {number:g}: give a number{limit} that is not below 0")

    @classmethod
    def parse(cls, text: str) -> Machine:
        """Read `key=value,…`, in which each key may be missing; raises SpecError."""
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        told: dict[str, str | float] = {}
        for pair in text.split(",") if text else ():
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not equals or key not in kinds or key in told:
                raise SpecError(
                    f"machine {shown(text)}: {shown(pair)} is no further key=value of {', '.join(kinds)}; "
                    f"write for example {_EXAMPLE}"
                )
            try:
                told[key] = value if kinds[key] == "str" else float(value)
            except ValueError:
                raise SpecError(f"{key} of a machine is {shown(value)}, which is no number") from None
        return cls(**told)  # type: ignore[arg-type]  # of the kinds that the fields have

    @classmethod
    def here(cls, told: str = "") -> Machine:
        """This machine: what was told of it; its id and vCPUs, if they were not. Raises SpecError."""
        known = cls.parse(told)
        # By default that of the running kernel: the machine since its start, also from within a container.
        machine_id = known.id or _BOOT_ID.read_text("ascii").replace("-", "")[:_ID_DIGITS]
        vcpus = known.vcpus or min(float(os.cpu_count() or 1), MAX_VCPUS)
        return dataclasses.replace(known, id=machine_id, vcpus=vcpus)

    def __str__(self) -> str:
        """The text that `parse` reads."""
        told = ((field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self))
        return ",".join(f"{key}={value}" for key, value, default in told if value != default)


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """What a machine has done for this job so far. All seconds are from its beginning: they grow from round to round,
    and begin anew if the pool was restarted. Its facts (`FACTS`) are only in the first record that names it.
    """

    id: str
    began_s: float
    """Unix time from which it counts: it was launched then, or its first worker was ordered."""
    pool: str = ""
    """Of which workers: "actor" or "learner"."""
    launcher: str = ""
    """What started its workers."""
    provider: str = ""
    type: str = ""
    """Instance type; "" if not known."""
    market: str = ""
    """on-demand, spot, reserved or own; "" if not known."""
    zone: str = ""
    vcpus: float = 0.0
    usd_h: float | None = None
    """US dollars per hour at its launch, as its host said; None if it did not."""
    connected_after_s: float = 0.0
    """Seconds until its first worker was connected."""
    first_task_after_s: float = 0.0
    """Seconds until its first task began."""
    present_s: float = 0.0
    """Seconds of it, for all jobs."""
    starting_s: float = 0.0
    """Seconds in which it started for this job."""
    work_s: float = 0.0
    """Seconds in which tasks of this job ran on it; shared with other jobs by the number of tasks."""
    waiting_s: float = 0.0
    """Seconds in which none ran, after one of this job."""
    released: bool = False
    """True if it is gone, and this job was the last on it."""
    held: bool = False
    """True if it waits, and this job was the last on it."""

    @property
    def described(self) -> bool:
        """True if anybody has told who is paid for it, or how much."""
        return bool(self.provider or self.type or self.market) or self.usd_h is not None

    @property
    def words(self) -> str:
        """The machine in words: its type and market, as far as they are known."""
        return f"{self.type or 'an unknown type'}{f' ({self.market})' if self.market else ''}"

    def after(self, before: MachineRecord | None) -> MachineRecord:
        """The record with the facts of the one before, which only the first record of a machine holds."""
        if before is None:
            return self
        facts = {name: getattr(self, name) or getattr(before, name) for name in FACTS}
        return dataclasses.replace(self, **facts)

    @property
    def key(self) -> tuple[str, str, float]:
        """Identifies what is counted from its beginning."""
        return self.id, self.pool, self.began_s


FACTS = (
    *("launcher", "provider", "type", "market", "zone", "vcpus", "usd_h"),
    *("connected_after_s", "first_task_after_s"),
)
"""Fields of a MachineRecord that do not change once they are known."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Machines at the end of a job and after it: the content of machines.json in its run folder."""

    end: tuple[MachineRecord, ...]
    """As they were when the job ended."""
    now: tuple[MachineRecord, ...]
    """As they were last seen."""
    seen_s: float
    """When that was, in Unix seconds."""

    @property
    def held(self) -> int:
        """Number of machines that waited for this job then, and so may have cost since."""
        return len({each.id for each in self.now if each.held})

    def to_json(self) -> str:
        """The text of machines.json."""
        return json.dumps(dataclasses.asdict(self))


def kept_from_json(text: str) -> Kept:
    """Read the text of machines.json; raises CorruptError."""
    try:
        return dataclass_of(Kept, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{MACHINES} is damaged: {told(error)}") from None
