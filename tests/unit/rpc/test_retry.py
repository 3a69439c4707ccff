"""Delays between attempts: they double up to a limit, are drawn anew each time, and never end."""

from itertools import islice

import pytest

from marless.rpc.concurrency import FIRST_DELAY_S, LONGEST_DELAY_S, delays


@pytest.mark.parametrize(("first_s", "longest_s"), [(FIRST_DELAY_S, LONGEST_DELAY_S), (1.0, 60.0), (0.5, 0.5)])
def test_each_delay_is_in_the_upper_half_of_a_step_that_doubles_up_to_the_longest(first_s, longest_s):
    step_s = first_s
    for delay_s in islice(delays(first_s=first_s, longest_s=longest_s), 2000):
        assert step_s / 2 <= delay_s <= step_s
        step_s = min(2 * step_s, longest_s)


def test_two_processes_that_failed_together_do_not_try_again_together():
    assert list(islice(delays(), 5)) != list(islice(delays(), 5))
