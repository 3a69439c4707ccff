"""Decisions read from bytes, and inputs that are almost right, made by them.

A fuzzer that changes one of the bytes changes one decision, and the input stays well-formed where it was not decided
otherwise: protobuf and JSON are parsed in C, where a fuzzer of plain bytes learns nothing from coverage. The same bytes
always make the same input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
LONGEST = 96
"""Bytes that make one input."""
_DEEP = 1500
"""Nested further than Python's own parsers go."""
ODD: tuple[Any, ...] = (  # Any: JSON
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *(2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *("", " ", "a", "\x00", "\ud800", "é" * 300, "²", "1_0", "1e9", "nan", "../../etc/passwd", "/dev/zero", "{", "[]"),
    *("ippo", "marless", "fixed", "os:system", "agent_0", "a" * 5000, "9" * 5000),
    *([], {}, [[]], [None], [{}], {"": None}, {"name": "x"}, [1, "a"], [0] * 300, {str(key): key for key in range(50)}),
)


class Choices:
    """Bytes as a stream of decisions; when they are used up, the first possibility is always taken."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        """0…255."""
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def below(self, limit: int) -> int:
        """0…limit − 1."""
        return (self.byte() if limit <= 256 else self.byte() << 8 | self.byte()) % limit

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[self.below(len(options))]

    def sometimes(self, one_in: int) -> bool:
        """True once in so many."""
        return self.byte() % one_in == 1

    def number(self) -> int:
        """A whole number with a liking for borders."""
        if self.sometimes(2):
            return self.pick(
                (0, 1, 2, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1)
            ) - self.below(2)
        return self.byte() - self.below(3)


def document(base: Any, choices: Choices) -> Any:  # Any: JSON
    """A copy of a JSON document with up to three things changed in it."""
    for _ in range(choices.below(4)):
        base = _changed(base, choices)
    return base


def _changed(node: Any, choices: Choices) -> Any:  # Any: JSON
    if isinstance(node, dict) and node and not choices.sometimes(8):
        key, what = choices.pick(list(node)), choices.below(8)
        if what == 6:
            return {name: value for name, value in node.items() if name != key}
        if what == 7:
            return {**node, str(choices.pick(ODD))[:40]: choices.pick(ODD)}
        return {**node, key: _changed(node[key], choices)}
    if isinstance(node, list | tuple) and node and not choices.sometimes(8):
        at, what = choices.below(len(node)), choices.below(8)
        if what == 6:
            return [*node[:at], *node[at + 1 :]]
        if what == 7:
            return [*node, node[at]]
        return [*node[:at], _changed(node[at], choices), *node[at + 1 :]]
    return choices.pick(ODD)


def text(valid: str, choices: Choices) -> str:
    """A text that may be cut, nested too deeply or have a character changed; most often as it was."""
    what = choices.below(16)
    if what == 1:
        return valid[: choices.below(len(valid) + 1)]
    if what == 2:
        return choices.pick(("[", '{"a":', "[{},")) * _DEEP + valid
    if what in (3, 4) and valid:
        at = choices.below(len(valid))
        return (
            valid[:at]
            + choices.pick(('"', "\\", "{", "]", ",", "\x00", "9" * 5000, "\ud800", "-", "e"))
            + valid[at + 1 :]
        )
    return valid


def raw(valid: bytes, choices: Choices) -> bytes:
    """Bytes with up to three of them changed, removed or added; often as they were."""
    data = bytearray(valid)
    for _ in range(choices.below(4)):
        at, what = choices.below(len(data) + 1), choices.below(4)
        if what == 0:
            data[at : at + 1] = bytes([choices.byte()])
        elif what == 1:
            del data[at : at + 1 + choices.below(16)]
        elif what == 2:
            data[at:at] = data[choices.below(len(data) + 1) :][: choices.below(32)]
        else:
            data[at:at] = choices.pick((b"\xff" * 8, b"\x80" * 10 + b"\x01", b"\x00" * 4, b"{", b'"'))
    return bytes(data)
