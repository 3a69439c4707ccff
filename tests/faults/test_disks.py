"""Disks of run folders and spools that are full or fail: what was written stays whole, and it goes on afterwards."""

import pytest

from tests.faults import disk_full, read_only, run_folder_disk, spool_full

needs_mounts = pytest.mark.skipif(not disk_full.possible(), reason="this kernel gives processes no mounts of their own")


@needs_mounts
def test_a_full_spool_refuses_and_takes_again(tmp_path):
    spool_full.run(tmp_path)


@needs_mounts
async def test_a_job_whose_disk_is_full_fails_whole_and_is_resumed(tmp_path):
    figures = await run_folder_disk.full(0, tmp_path)
    assert figures["rounds before"] >= run_folder_disk.ROUNDS_BEFORE


@pytest.mark.slow
@pytest.mark.skipif(not read_only.can_abort(), reason="this process may not mount images of filesystems")
async def test_a_job_whose_disk_fails_fails_whole_and_goes_on(tmp_path):
    figures = await run_folder_disk.aborted(0, tmp_path)
    assert figures["rounds after"] >= run_folder_disk.ROUNDS_AFTER
