"""`python -m tests.docs --write [PAGE…]`: run the transcripts of the documents at full length, and write them anew."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.docs import transcripts
from tests.docs.blocks import PAGES, ROOT, blocks, text_of
from tests.docs.workplace import Workplace

WITH_TRANSCRIPTS = [page for page in PAGES if blocks(page, "console")]


def write(page: str) -> None:
    """Run the commands of a page in order; put what they print in place of what it shows."""
    text = text_of(page)
    with tempfile.TemporaryDirectory() as place:
        workplace = Workplace(Path(place), small=False)
        workplace.furnish()
        try:
            workplace.prepare(page)
            added = 0
            for block in blocks(page, "sh", "console"):
                if block.kind == "sh":
                    workplace.run(block)
                    continue
                before = text.count("\n")
                text = transcripts.rewritten(text, block, workplace.transcript(block), added)
                added += text.count("\n") - before
        finally:
            workplace.close()
    if (ROOT / page).read_text("utf-8") != text_of(page):
        sys.exit(f"{page} has been changed meanwhile: nothing was written")
    (ROOT / page).write_text(text, "utf-8")


def main() -> None:
    """Write the pages that are named, or all that have a transcript."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=__doc__)
    parser.add_argument("--write", nargs="*", required=True, choices=WITH_TRANSCRIPTS, metavar="PAGE")
    for page in parser.parse_args().write or WITH_TRANSCRIPTS:
        print(page, flush=True)  # noqa: T201
        write(page)


if __name__ == "__main__":
    main()
