"""Commands with their output, as a page shows them: taken apart, compared with a run, and written anew from one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tests.docs.blocks import Block
from tests.docs.terminal import BAR, DEEPER

PROMPT, MORE = "$ ", "..."
_MASKS = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z?|\d{4}-\d\d-\d\d [\d:]+", "#"),
    (r"unix:\S+", "#"),
    (r"(?<=[-/])(?=[a-f]*\d)[0-9a-f]{8}(?=[-/. ]|$)|\d{8}-\d{6}", "#"),
    (r"[-+−]?\d[\d,.]*(?:e[-+]?\d+)?", "#"),
    (r"(#)(?:[:–]#)+", "#"),
    (r"# \(was #\)", "#"),
    (r"# (?:B|kB|MB|GB)\b", "# B"),
    (r"\s+", " "),
)


@dataclass(frozen=True)
class Shown:
    """A command and what it prints."""

    command: str
    """As typed, with its continuation lines."""
    output: tuple[str, ...]


def parse(text: str) -> list[Shown]:
    """The commands of a block of kind `console`; its first line has to be one."""
    found: list[Shown] = []
    continued = False
    for line in text.rstrip("\n").split("\n"):
        if continued:
            found[-1] = replace(found[-1], command=f"{found[-1].command}\n{line}")
        elif line.startswith(PROMPT):
            found.append(Shown(line.removeprefix(PROMPT), ()))
        else:
            found[-1] = replace(found[-1], output=(*found[-1].output, line))
        continued = line.endswith("\\") and (continued or line.startswith(PROMPT))
    return found


def structure(lines: Sequence[str]) -> list[str]:
    """Lines without what differs from run to run: numbers, times, ids; equal lines one after another count once."""
    return [line for line, _ in groupby(_masked(line) for line in _whole(lines))]


def same(shown: Sequence[str], seen: Sequence[str]) -> bool:
    """True if a run printed what a page shows; `...` stands for any lines."""
    parts, last = [], ""
    for part in map(structure, _parts(shown)):
        left = part[1:] if part and part[0] == last else part  # equal lines count once, also around `...`
        parts.append(re.escape("".join(f"{line}\n" for line in left)))
        last = part[-1] if part else last
    return re.fullmatch(r"(?:.*\n)*".join(parts), "".join(f"{line}\n" for line in structure(seen))) is not None


def renewed(shown: Sequence[str], seen: Sequence[str]) -> list[str]:
    """The lines to show of a new run: as many at the beginning and at the end, and in the middle from lines that begin
    alike.
    """
    first, *others = _parts(shown)
    if not others:
        return list(seen)
    more = [line for line in shown if line.strip() == MORE]
    found, place = list(seen[: len(first)]), len(first)
    for left_out, part in zip(more, others[:-1], strict=False):
        place = next(n for n in range(place, len(seen)) if _beginning(seen[n]) == _beginning(part[0]))
        found += [left_out, *seen[place : place + len(part)]]
        place += len(part)
    last = len(others[-1])
    return [*found, more[-1], *(seen[len(seen) - last :] if last else ())]


def rewritten(page: str, block: Block, outputs: Sequence[Sequence[str]], added: int = 0) -> str:
    """The text of a page with new outputs in one of its blocks; `added`: lines that the page has more above it."""
    lines: list[str] = []
    for shown, seen in zip(parse(block.text), outputs, strict=True):
        lines += [f"{PROMPT}{shown.command}", *renewed(shown.output, seen)]
    whole = page.split("\n")
    begin = block.line + added
    return "\n".join([*whole[:begin], *lines, *whole[begin + block.text.count("\n") :]])


def _whole(lines: Sequence[str]) -> list[str]:
    """Lines without bars, and with sentences that a terminal has parted in one piece: both depend on the numbers."""
    found: list[str] = []
    for line in lines:
        deeper = line.startswith(DEEPER) and not line[len(DEEPER) :].startswith(" ")
        if found and deeper and found[-1].startswith("marless: "):
            found[-1] += f" {line.strip()}"
        elif BAR not in line:
            found.append(line)
    return found


def _masked(line: str) -> str:
    for pattern, mask in _MASKS:
        line = re.sub(pattern, mask, line)
    return line.strip()


def _beginning(line: str) -> str:
    return _masked(line).partition(":")[0]


def _parts(lines: Sequence[str]) -> list[list[str]]:
    """Lines between those that stand for others."""
    return [list(part) for part in _split(lines)]


def _split(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    start = 0
    for number, line in enumerate(lines):
        if line.strip() == MORE:
            yield lines[start:number]
            start = number + 1
    yield lines[start:]
