"""What docs/deploying.md shows is what happens."""

import pytest

from tests.docs import transcripts
from tests.docs.blocks import PAGES, blocks
from tests.docs.workplace import Workplace, treatment

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]


@pytest.mark.parametrize("page", [page for page in PAGES if treatment(page).containers])
def test_its_commands_run(images, tmp_path, page):
    workplace = Workplace(tmp_path, small=False)
    workplace.furnish()
    workplace.prepare(page)
    for block in blocks(page, "console"):
        for shown, seen in zip(transcripts.parse(block.text), workplace.transcript(block), strict=True):
            assert transcripts.same(shown.output, seen), "\n".join([f"{block}: {shown.command}", *seen])
