"""Draws which packages import which, from the sources of this checkout or of a commit.

    python -m tests.imports --to docs/images/imports.svg
    python -m tests.imports --revision 7a453f6^ --to docs/images/imports-before.svg

A package stands above all those that it imports. Arrows that follow from others are left out. Packages that import one
another in a circle are one red box.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from tests.test_architecture import ROOT, arrows

Arrows = Mapping[str, frozenset[str]]
WIDTH, BOX, GAP, ROW, LINE = 1120, 26, 14, 70, 15
_HEAD = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#667"/></marker></defs><rect width="100%" height="100%" fill="white"/>'
)


def sources(revision: str, tops: Sequence[str] = ("marless", "services")) -> dict[str, str]:
    """Source of each module below these folders, by its path with dots; of this checkout if `revision` is ""."""
    if not revision:
        paths = [path for top in tops for path in (ROOT / top).rglob("*.py")]
        return {_module(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    packed = subprocess.run(["git", "archive", revision, *tops], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        found = {each.name: archive.extractfile(each) for each in archive.getmembers() if each.name.endswith(".py")}
    return {_module(Path(name)): file.read().decode() for name, file in found.items() if file}


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def reached(found: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The packages that each package imports, directly or through others."""
    far = {one: set(others) for one, others in found.items()}
    for middle, behind in far.items():
        for others in far.values():
            others.update(behind if middle in others else ())
    return far


def drawn(found: Mapping[str, set[str]]) -> tuple[dict[str, tuple[str, ...]], dict[str, set[str]]]:
    """Boxes, each with its packages, more than one for a circle; and the arrows between boxes that no others imply."""
    far = reached(found)
    box = {one: min({one} | {other for other in far[one] if one in far[other]}) for one in found}
    boxes = {name: tuple(sorted(one for one in found if box[one] == name)) for name in set(box.values())}
    between: dict[str, set[str]] = {name: set() for name in boxes}
    for one, others in found.items():
        between[box[one]] |= {box[other] for other in others} - {box[one]}
    over = reached(between)
    return boxes, {
        one: {each for each in others if not any(each in over[o] for o in others)} for one, others in between.items()
    }


def layers(between: Mapping[str, set[str]]) -> list[list[str]]:
    """Boxes by depth: the first row imports nothing, each later one only rows before it."""
    depth: dict[str, int] = {}
    while len(depth) < len(between):
        for one, others in between.items():
            if one not in depth and others <= set(depth):
                depth[one] = 1 + max((depth[other] for other in others), default=-1)
    return [sorted(one for one in depth if depth[one] == row) for row in range(max(depth.values()) + 1)]


def svg(found: Mapping[str, set[str]]) -> str:
    """The drawing, lowest packages at the bottom."""
    boxes, between = drawn(found)
    rows = layers(between)[::-1]
    parts, place, top = [_HEAD], {}, GAP
    for row in rows:
        texts = {one: _texts(boxes[one]) for one in row}
        wide = {one: 14 + 7 * max(map(len, texts[one])) for one in row}
        left = (WIDTH - sum(wide.values()) - GAP * (len(row) - 1)) / 2
        high = max(BOX + LINE * (len(text) - 1) for text in texts.values())
        for one in row:
            place[one] = (left + wide[one] / 2, top, top + BOX + LINE * (len(texts[one]) - 1))
            parts.append(_box(left, top, wide[one], texts[one], len(boxes[one]) > 1))
            left += wide[one] + GAP
        top += high + ROW - BOX
    lines = [_arrow(place[one], place[other]) for one in sorted(between) for other in sorted(between[one])]
    body = "\n".join(parts[:1] + lines + parts[1:])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" font-family="sans-serif" '
        f'font-size="12">{body}</svg>\n'
    )


def _texts(packages: Sequence[str]) -> list[str]:
    names = [each.removeprefix("marless.") for each in packages]
    return [", ".join(names[start : start + 8]) for start in range(0, len(names), 8)]


def _box(left: float, top: float, width: float, lines: Sequence[str], circle: bool) -> str:
    fill, edge = ("#fdd", "#c00") if circle else ("#eef3fb", "#456")
    rows = "".join(
        f'<text x="{left + width / 2:.0f}" y="{top + 17 + LINE * row}" text-anchor="middle">{escape(line)}</text>'
        for row, line in enumerate(lines)
    )
    box = f'x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{BOX + LINE * (len(lines) - 1)}" rx="4"'
    return f'<rect {box} fill="{fill}" stroke="{edge}"/>{rows}'


def _arrow(start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    (x, _, y), (x2, y2, _) = start, end
    return (
        f'<path d="M{x:.0f},{y:.0f} C{x:.0f},{(y + y2) / 2:.0f} {x2:.0f},{(y + y2) / 2:.0f} {x2:.0f},{y2:.0f}" '
        'fill="none" stroke="#667" stroke-width="0.8" marker-end="url(#tip)"/>'
    )


def main() -> None:
    """Write the drawing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default="", help="a commit; this checkout if not given")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE.svg")
    args = parser.parse_args()
    args.to.write_text(svg(arrows(sources(args.revision))), encoding="utf-8")


if __name__ == "__main__":
    main()
