"""The benchmark of MuJoCo's tasks: it steps what it says, and its ratios are of neighbours."""

from bench import mujoco


def test_both_step_all_copies():
    (fast, contacts), slow = mujoco.ours("ant"), mujoco.theirs("ant")
    for i in range(3):
        fast(i)
        slow(i)
    assert contacts.seconds > 0


def test_ratios_are_of_neighbours():
    found = mujoco.ratio([(10.0, 5.0), (40.0, 10.0), (9.0, 3.0)])
    assert (found.median, found.low, found.high) == (3.0, 2.0, 4.0)
