"""Was a recorded history of the versioned register linearizable? Two independent answers.

The register is one policy of one job in the parameter store: a version that grows by one with each publish, the
content published as each version, and an epoch that grows by one with each acquire and fences older publishes.

`check` is exact and takes O(n log n). A recording ends with a read of every version, and contents are unique, so it is
known which write made which version; then everything that an answer implies is an order of two operations. Writes are
ordered by their versions, acquires by their epochs; what saw version 7 comes after the write that made it and, if it
saw a head, before the write that made 8. With the order of real time these form a graph, and the history is
linearizable if and only if it has no cycle; a cycle is the proof that it is not.

`search` tries all orders against a register of three lines (Wing and Gong 1993, memoised as in Lowe 2017); it is for
tiny histories, to check the checker.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

UNKNOWN = math.inf
"""As the end of an operation: no answer came. It may have taken effect at any time since, or never will."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """One call, and what came of it. Times are of one clock."""

    client: int = 0
    start: float
    end: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Write(Operation):
    """A publish."""

    content: str
    """Unique to this write."""
    expected: int
    epoch: int
    version: int | None = None
    """If it was acknowledged."""
    conflict: int | None = None
    """If it was refused since another version is the head: that version."""
    fenced: int | None = None
    """If it was refused since its epoch is over: the epoch that has begun."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadHead(Operation):
    """The newest version (0: there is none), with its content where that was read too."""

    version: int
    content: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadVersion(Operation):
    """The content of one version."""

    version: int
    content: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Acquire(Operation):
    """A new epoch."""

    epoch: int | None = None
    """If it was acknowledged."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ReadEpoch(Operation):
    """The newest epoch."""

    epoch: int


class NotLinearizableError(Exception):
    """The history contradicts the register; says how."""


def check(history: Sequence[Operation]) -> None:
    """Raises NotLinearizableError unless some order of these operations explains every answer."""
    writes = _writes_by_version(history)
    acquires = _acquires_by_epoch(history, writes.values())
    _check_contents(history, writes)
    order = _Order(history)
    order.chain([writes[version] for version in sorted(writes)])
    order.chain([acquires[epoch] for epoch in sorted(acquires)])
    for operation in history:
        for before, after in _implied(operation, writes, acquires):
            order.add(before, after)
    if cycle := order.cycle():
        raise NotLinearizableError("each of these must come before the next:\n" + "\n".join(map(repr, cycle)))


def _writes_by_version(history: Sequence[Operation]) -> Mapping[int, Write]:
    by_content = {operation.content: operation for operation in history if isinstance(operation, Write)}
    made: dict[int, Write] = {}
    for operation in history:
        if isinstance(operation, Write) and operation.version is not None:
            _claim(made, operation.version, operation)
    for read in history:
        if isinstance(read, ReadHead | ReadVersion) and read.content is not None:
            if (read.version, read.content) == (0, ""):
                continue
            if not read.version or read.content not in by_content:
                raise NotLinearizableError(f"nobody wrote what was read: {read}")
            _claim(made, read.version, by_content[read.content])
    if missing := set(range(1, max(made, default=0) + 1)) - made.keys():
        raise NotLinearizableError(f"versions {sorted(missing)} are lost: nobody read them and nobody knows of them")
    return made


def _claim(made: dict[int, Write], version: int, write: Write) -> None:
    if made.setdefault(version, write) is not write:
        raise NotLinearizableError(f"version {version} was made by two writes: {made[version]} and {write}")


def _acquires_by_epoch(history: Sequence[Operation], applied: Iterable[Write]) -> Mapping[int, Acquire]:
    """Epochs that nobody was told of are those of the unanswered acquires that were called first."""
    made: dict[int, Acquire] = {}
    unanswered = []
    for operation in sorted(history, key=lambda operation: operation.start):
        if isinstance(operation, Acquire):
            if operation.epoch is None:
                unanswered.append(operation)
            elif made.setdefault(operation.epoch, operation) is not operation:
                raise NotLinearizableError(
                    f"epoch {operation.epoch} was given twice: {made[operation.epoch]}, {operation}"
                )
    seen = max([0, *made, *(write.epoch for write in applied), *filter(None, map(_epoch_seen, history))])
    missing = [epoch for epoch in range(1, seen + 1) if epoch not in made]
    if len(missing) > len(unanswered):
        raise NotLinearizableError(f"epochs {missing} have begun, and {len(unanswered)} acquires can have begun them")
    return made | dict(zip(missing, unanswered, strict=False))


def _epoch_seen(operation: Operation) -> int | None:
    if isinstance(operation, Write):
        return operation.fenced
    return operation.epoch if isinstance(operation, ReadEpoch) else None


def _check_contents(history: Sequence[Operation], writes: Mapping[int, Write]) -> None:
    versions: dict[str, int] = {}
    for version, write in writes.items():
        if versions.setdefault(write.content, version) != version:
            raise NotLinearizableError(f"one write made two versions, {versions[write.content]} and {version}: {write}")
        if write.expected != version - 1:
            raise NotLinearizableError(f"version {version} was made by a write for another head: {write}")
        if write.conflict is not None or write.fenced is not None:
            raise NotLinearizableError(f"it was refused and yet made version {version}: {write}")
    for operation in history:
        if isinstance(operation, Write) and operation.conflict == operation.expected:
            raise NotLinearizableError(f"refused although the head is what it expects: {operation}")
        if isinstance(operation, Write) and operation.fenced is not None and operation.fenced <= operation.epoch:
            raise NotLinearizableError(f"fenced although no newer epoch has begun: {operation}")


def _implied(
    operation: Operation, writes: Mapping[int, Write], acquires: Mapping[int, Acquire]
) -> Iterator[tuple[Operation | None, Operation | None]]:
    """Orders that an answer implies; None stands for what never happened, or always had."""
    match operation:
        case ReadVersion():
            yield writes.get(operation.version), operation
        case ReadHead():
            yield from _between(writes, operation.version, operation)
        case ReadEpoch():
            yield from _between(acquires, operation.epoch, operation)
        case Write(fenced=int(epoch)):
            yield from _between(acquires, epoch, operation)
        case Write(conflict=int(head)):
            yield from _between(writes, head, operation)
            yield operation, acquires.get(operation.epoch + 1)
        case Write() if writes.get(operation.expected + 1) is operation:
            yield from _between(acquires, operation.epoch, operation)


def _between(
    made: Mapping[int, Operation], number: int, operation: Operation
) -> Iterator[tuple[Operation | None, Operation | None]]:
    if number and number not in made:
        raise NotLinearizableError(f"it saw number {number}, which nobody made: {operation}")
    yield made.get(number), operation
    yield operation, made.get(number + 1)


class _Order:
    """What comes before what. Real time is a chain of moments: of the ends before it, and the starts after."""

    def __init__(self, history: Sequence[Operation]) -> None:
        self._after: dict[Operation | int, list[Operation | int]] = defaultdict(list)
        self._nodes: set[Operation | int] = {0}
        events = [(operation.start, 0, operation) for operation in history]
        events += [(operation.end, 1, operation) for operation in history if operation.end != UNKNOWN]
        moment = 0
        for _, ends, operation in sorted(events, key=lambda event: event[:2]):
            if ends:
                self.add(moment, moment + 1)
                moment += 1
                self.add(operation, moment)
            else:
                self.add(moment, operation)

    def add(self, before: Operation | int | None, after: Operation | int | None) -> None:
        if before is not None and after is not None:
            self._after[before].append(after)
            self._nodes |= {before, after}

    def chain(self, operations: Sequence[Operation]) -> None:
        for before, after in pairwise(operations):
            self.add(before, after)

    def cycle(self) -> list[Operation]:
        """Operations that would each have to come before the next, the last one before the first; [] if none do."""
        waits_for = Counter(after for afters in self._after.values() for after in afters)
        free = [node for node in self._nodes if not waits_for[node]]
        left = set(self._nodes)
        while free:
            node = free.pop()
            left.discard(node)
            for after in self._after[node]:
                waits_for[after] -= 1
                if not waits_for[after]:
                    free.append(after)
        return self._walk(left)

    def _walk(self, left: set[Operation | int]) -> list[Operation]:
        """A cycle among nodes each of which waits for another of them."""
        before = {after: node for node in left for after in self._after[node] if after in left}
        path: list[Operation | int] = []
        seen: set[Operation | int] = set()
        node = next(iter(left), None)
        while node is not None and node not in seen:
            seen.add(node)
            path.append(node)
            node = before[node]
        around = path[path.index(node) :] if node is not None else []
        return [each for each in reversed(around) if isinstance(each, Operation)]


def search(history: Sequence[Operation]) -> bool:
    """True if some order of these operations explains every answer: tries all of them."""

    @cache
    def explains(done: frozenset[Operation], contents: tuple[str, ...], epoch: int) -> bool:
        pending = [operation for operation in history if operation not in done]
        first_end = min((operation.end for operation in pending), default=UNKNOWN)
        if first_end == UNKNOWN:
            return True
        return any(
            explains(done | {operation}, *state)
            for operation in pending
            if operation.start <= first_end and (state := _apply(operation, contents, epoch))
        )

    return explains(frozenset(), (), 0)


def _apply(operation: Operation, contents: tuple[str, ...], epoch: int) -> tuple[tuple[str, ...], int] | None:
    """The register after an operation, or None if it would not have answered like this."""
    head, unchanged = len(contents), (contents, epoch)
    match operation:
        case ReadVersion(version=version, content=content):
            return unchanged if 0 < version <= head and contents[version - 1] == content else None
        case ReadHead(version=version, content=content):
            return unchanged if version == head and content in (None, "".join(contents[-1:])) else None
        case ReadEpoch(epoch=seen):
            return unchanged if seen == epoch else None
        case Acquire(epoch=given):
            return (contents, epoch + 1) if given in (None, epoch + 1) else None
        case Write(fenced=int(newest)):
            return unchanged if operation.epoch < newest == epoch else None
        case Write(conflict=int(other)):
            return unchanged if operation.epoch >= epoch and operation.expected != head == other else None
        case Write():
            if operation.epoch == epoch and operation.expected == head and operation.version in (None, head + 1):
                return (*contents, operation.content), epoch
            return unchanged if operation.end == UNKNOWN else None
    raise TypeError(operation)
