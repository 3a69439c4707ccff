"""Jobs of images, of which nets read several: services come to what one process comes to, whatever is interrupted."""

from itertools import count

import pytest

from marless.services.coordinator.state.run_folder import RunFolder
from tests.faults.jobs import IMAGES
from tests.integration.running import created
from tests.integration.running import spec as spec_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
FAMILIES = {
    "ippo": {"name": "ippo", "epochs": 2, "minibatches": 2, "torso": "shared"},
    "impact": {"name": "impact", "epochs": 2, "minibatches": 2, "batches": 2, "target_frequency": 0.5},
    "iql": {"name": "iql", "warmup": 8, "batch": 8, "updates": 2, "replay": {"capacity": 90}},
}
_serials = count()


def new(tmp_path, family: str) -> RunFolder:
    """Episodes of some 6 env steps in rounds of 3, whose nets read four images; the replay drops its first rounds."""
    return created(tmp_path / f"images-{next(_serials)}", spec_of(**IMAGES, algorithm=FAMILIES[family]))


@pytest.mark.parametrize("family", FAMILIES)
async def test_no_interruption_changes_what_is_learned_from_images(tmp_path, check_restarts, family):
    await check_restarts(new(tmp_path, family), new(tmp_path, family))
