"""Pipelined settings are held against the synchronous ones that are like them in all else."""

import pytest

from bench.frontiers import finished, folder_of
from bench.schedule_pairs import rows


def setting(schedule, actors, *runs):
    """Runs of some seeds: (seed, seconds to the goal or None, seconds to the end)."""
    return {
        "actors": actors,
        "groups": "shared",
        "schedule": schedule,
        "seeds_reached": sum(goal is not None for _, goal, _ in runs),
        "runs": [
            {
                "seed": seed,
                "to_the_goal": "not reached" if goal is None else {"seconds": goal, "usd": {"billed": goal / 2}},
                "to_the_end": {"seconds": end},
                "final_return": end * actors,
            }
            for seed, goal, end in runs
        ],
    }


def test_ratios_are_paired_by_seed():
    settings = {
        "a": setting("synchronous", 4, (0, 1.0, 10.0), (1, 4.0, 10.0)),
        "b": setting("pipelined", 4, (1, 2.0, 9.0), (0, 0.5, 9.0)),
        "c": setting("pipelined", 8, (0, 1.0, 9.0)),
    }
    (row,) = rows("task", settings)
    assert row == {
        "task": "task",
        "actors": 4,
        "synchronous there": "2 of 2",
        "pipelined there": "2 of 2",
        "time of the whole run": "0.90 (0.90 to 0.90)",
        "time to the goal": "0.50 (0.50 to 0.50)",
        "billed cost to the goal": "0.50 (0.50 to 0.50)",
        "return at the end": "-4 (-4 to -4)",
    }


def test_what_a_seed_does_not_reach_has_no_ratio():
    settings = {
        "a": setting("synchronous", 4, (0, 1.0, 10.0), (1, None, 10.0)),
        "b": setting("pipelined", 4, (0, 0.5, 5.0), (1, 2.0, 20.0)),
    }
    (row,) = rows("task", settings)
    assert (row["synchronous there"], row["pipelined there"], row["time to the goal"]) == ("1 of 2", "2 of 2", "")
    assert row["time of the whole run"].startswith("1.00 (0.00 to ")


def test_a_directory_without_frontiers_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"there is no frontier; make some by python -m bench.frontiers --runs "):
        finished(tmp_path)
    file = folder_of(tmp_path, "hopper") / "frontier.json"
    file.parent.mkdir()
    file.write_text("{}")
    assert [task.name for task in finished(tmp_path)] == ["hopper"]
