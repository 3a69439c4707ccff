"""What pages show besides curves: marks, and stretches of equal groups; and `RoundUpdate`, a new round for a page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from marless.app.dashboard.rows import RoundRow


@dataclass(frozen=True)
class Mark:
    """Something that a curve has a mark for: a fault, or how it was recovered from."""

    round: int
    kind: str
    """fault, recovery or note."""
    text: str


@dataclass
class GroupStretch:
    """Successive rounds with the same groups, decided for the same kind of reason."""

    first: int
    last: int
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """Policy and agents of each."""
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RoundUpdate:
    """What a new round adds to the curves."""

    row: RoundRow
    changed: Mapping[int, Mapping[str, float]]
    """Numbers of the round, and of an earlier one that was evaluated late."""
    stretch: GroupStretch
    known: Collection[str] | None
    """The curves that are kept, if not all are."""

    @cached_property
    def json(self) -> bytes:
        """The update as JSON; encoded once for all browsers, and only if one follows."""
        known = self.known
        told = [
            {"round": number, "values": {k: v for k, v in values.items() if known is None or k in known}}
            for number, values in self.changed.items()
        ]
        row = self.row
        return msgspec.json.encode(
            {
                "rows": told,
                "ended_s": row.ended_s,
                "versions": row.versions,
                "stretch": self.stretch,
                "decisions": [{"kind": each.kind, "reason": each.reason} for each in row.decisions],
            }
        )
