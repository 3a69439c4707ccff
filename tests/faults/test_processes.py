"""The cells of the table of faults whose services are processes; `make faults` has them at full size."""

import pytest

from marless.core import failpoint
from tests.faults import failpoints
from tests.faults.harness import cells_of
from tests.faults.strikes import PROCESS_FAULTS

pytestmark = pytest.mark.timeout(300)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("cell", cells_of("", PROCESS_FAULTS))
async def test_a_job_that_is_struck_keeps_its_promises(process_stage, cell):
    await process_stage.check(cell)


def test_every_failpoint_is_tried():
    places = failpoints.IN_ROUNDS + failpoints.ONCE_A_LIFE + failpoints.ON_LOSS
    places += failpoints.ON_SUBMIT + failpoints.AT_THE_END + failpoints.AGGREGATING
    assert set(failpoints.of(places + failpoints.ELSEWHERE)) == set(failpoint.NAMES)
