"""What the documents show of containers is what happens."""

import pytest

from tests.docs import elsewhere

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900, func_only=True)]


@pytest.mark.parametrize(("page", "heading"), elsewhere.parts("containers"))
def test_transcripts_are_true(images, page, heading):
    for block, seen in elsewhere.run(page, heading):
        elsewhere.check(block, seen)
