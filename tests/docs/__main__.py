"""`python -m tests.docs --write [PAGE…] [--under HEADING]`: run transcripts at full length, and write them anew."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.docs import elsewhere, transcripts
from tests.docs.blocks import PAGES, ROOT, Block, blocks, text_of
from tests.docs.workplace import Workplace, treatment, treatment_of

ELSEWHERE = [part for needs in elsewhere.PROVIDED for part in elsewhere.parts(needs)]
WITH_TRANSCRIPTS = [page for page in PAGES if blocks(page, "console")]


def write(page: str, heading: str = "") -> None:
    """Run the commands of a page in order; put what they print in place of what it shows.

    With `heading`, only those below it. Commands that need what few machines have are run only there.
    """
    text = text_of(page)
    with tempfile.TemporaryDirectory() as place:
        runs = elsewhere.run(page, heading) if heading else _here(page, Path(place))
        added = 0
        for block, outputs in runs:
            before = text.count("\n")
            text = transcripts.rewritten(text, block, outputs, added)
            added += text.count("\n") - before
    if (ROOT / page).read_text("utf-8") != text_of(page):
        sys.exit(f"{page} has been changed meanwhile: nothing was written")
    (ROOT / page).write_text(text, "utf-8")


def _here(page: str, place: Path) -> list[tuple[Block, list[list[str]]]]:
    alone, found = treatment(page).alone, []
    workplace = Workplace.empty(place, small=False) if alone else Workplace(place, small=False)
    if not alone:
        workplace.furnish()
    try:
        workplace.prepare(page)
        for block in blocks(page, "sh", "console"):
            if treatment_of(block).needs:
                continue
            if block.kind == "sh":
                workplace.run(block)
            else:
                found.append((block, workplace.transcript(block)))
        return found
    finally:
        workplace.close()


def main() -> None:
    """Write the pages that are named, or all that have a transcript."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument("--write", nargs="*", required=True, choices=WITH_TRANSCRIPTS, metavar="PAGE")
    parser.add_argument("--under", default="", metavar="HEADING", help="one part of one page, such as 'Slurm'")
    args = parser.parse_args()
    if args.under and (len(args.write) != 1 or (args.write[0], args.under) not in ELSEWHERE):
        parser.error(f"--under is for these parts: {'; '.join(f'{page} {part!r}' for page, part in ELSEWHERE)}")
    for page in args.write or WITH_TRANSCRIPTS:
        print(page, flush=True)  # noqa: T201
        write(page, args.under)


if __name__ == "__main__":
    main()
