"""The table of faults leaves nothing out that it has names for, and each of its faults is in the default run."""

from collections import defaultdict

from marless.core import failpoint
from tests.faults.__main__ import CASES
from tests.faults.jobs import JOBS, PROCESS_JOBS
from tests.faults.promises import PROMISES
from tests.faults.strikes import FAULTS, PROCESS_FAULTS
from tests.faults.table import FULL, cells, counts, expanded


def test_it_uses_every_name_that_it_may_use():
    every = list(cells())
    assert {cell.fault for cell in every} <= set(FAULTS) | set(PROCESS_FAULTS)
    assert {cell.fault for cell in every} >= set(PROCESS_FAULTS)
    assert {word.partition(":")[0] for cell in every for word in cell.holds} == set(PROMISES)
    known = {(name, job) for all_jobs in (JOBS, PROCESS_JOBS) for name, jobs in all_jobs.items() for job in jobs}
    assert {(cell.schedule, cell.job) for cell in every} <= known
    assert all(cell.holds for cell in every)


def test_make_faults_runs_every_cell_at_full_size_once():
    full = list(map(str, cells(target=FULL)))
    assert sorted(name for case in CASES for name in full if case.rows and name.startswith(case.rows)) == sorted(full)


def test_no_cell_is_there_twice():
    every = [str(cell) for cell in cells()]
    assert len(set(every)) == len(every)


def test_every_fault_in_this_process_is_in_the_default_run_under_each_of_its_schedules():
    targets = defaultdict(set)
    for cell in cells():
        if cell.fault in FAULTS:
            targets[cell.schedule, cell.fault].add(cell.target)
    assert [fault for fault, found in targets.items() if "" not in found] == []


def test_coordinators_are_killed_at_every_failpoint_that_a_job_passes():
    places = {cell.when.partition(":")[0] for cell in cells("synchronous") if cell.fault.startswith("coordinator")}
    tried = {f"coordinator.{place}" for each in places for place in each.split("+")}
    elsewhere = {"coordinator.spec", "coordinator.machines"}  # a job is accepted there, and machines are noted
    wanted = {name for name in failpoint.NAMES if name.startswith("coordinator.")}
    assert {name for name in wanted - tried if name.rpartition(".")[0] not in elsewhere} == set()


def test_braces_stand_for_each_of_their_words():
    assert expanded("{a,b}.{c,d}:1") == ["a.c:1", "a.d:1", "b.c:1", "b.d:1"]
    assert expanded("a") == ["a"]


def test_the_printed_table_counts_every_cell():
    rows = counts()
    assert sum(row["make test"] + row["make test-slow"] + row["make faults"] for row in rows) == len(list(cells()))
