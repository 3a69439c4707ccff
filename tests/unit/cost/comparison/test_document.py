"""A comparison in a document."""

import pytest

from marless.core.errors import SpecError
from marless.cost.comparison import report
from tests.unit.cost.comparison.test_table import two


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "results.md"
    path.write_text("# Results\n<!-- tiny -->\nold\n<!-- /tiny -->\nafter \\1\n<!-- tiny2 -->\nkept\n<!-- /tiny2 -->\n")
    return path


def test_a_block_is_replaced_and_the_rest_stays(page):
    report.write_block(page, "tiny", "new \\g<0>")
    report.write_block(page, "tiny", "newer \\g<0>")
    assert page.read_text() == (
        "# Results\n<!-- tiny -->\nnewer \\g<0>\n<!-- /tiny -->\nafter \\1\n<!-- tiny2 -->\nkept\n<!-- /tiny2 -->\n"
    )


def test_a_block_says_what_was_run_and_what_came_of_it(page):
    block = report.block(
        two([-20.0, -22.0], [-20.0, -22.0]), ["one.", "two."], command="marless compare x", picture="a.png"
    )
    assert block.startswith("```sh\nmarless compare x\n```\n\n|  | vanilla | marless |\n")
    assert "](a.png)" in block
    assert "- one.\n- two.\n" in block
    assert "4 runs of 2 rounds, 3.3 minutes of rounds." in block


def test_a_document_without_the_block_says_what_to_put_there(page, tmp_path):
    with pytest.raises(SpecError, match="no block for the job other; put the lines <!-- other --> and <!-- /other -->"):
        report.check_document(page, "other")
    with pytest.raises(SpecError, match=r"nowhere\.md: cannot be read"):
        report.check_document(tmp_path / "nowhere.md", "tiny")
    report.check_document(page, "tiny")
