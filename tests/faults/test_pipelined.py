"""The cells of schedule pipelined in the table of faults."""

import pytest

from tests.faults.harness import cells_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("cell", cells_of("pipelined"))
async def test_a_job_that_is_struck_keeps_its_promises(stage, cell):
    await stage.check(cell)
