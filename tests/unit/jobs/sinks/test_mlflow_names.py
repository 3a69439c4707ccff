"""Names in MLflow: what it refuses is escaped, and different names stay different."""

import posixpath
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marless.jobs.sinks.mlflow import name_of


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("agents/agent_0/greedy", "agents/agent_0/greedy"),
        ("policies/north-west: 2/kl.mean", "policies/north-west: 2/kl.mean"),
        ("agents/a#1/greedy", "agents/a-x23-1/greedy"),
        ("agents/a$1/greedy", "agents/a-x24-1/greedy"),
        ("env.options.rewards.win!", "env.options.rewards.win-x21-"),
        ("a-x21-", "a-x2d-x21-"),
        ("a-x2!", "a-x2d-x2-x21-"),
        ("a//b/", "a/-x2f-b-x2f-"),
        ("a/../b", "a/-x2e-./b"),
        ("./a", "-x2e-/a"),
    ],
)
def test_by_hand(name, shown):
    assert name_of(name) == shown


@given(st.lists(st.text(alphabet="-xabf012!#./ \n:é", min_size=1, max_size=12), min_size=2, unique=True))
@example(["!", "-x21-"])
@example(["a" * 260 + "!", "a" * 260 + "#", "a" * 260])
def test_different_names_stay_different_and_are_what_mlflow_takes(names):
    shown = [name_of(name) for name in names]
    assert len(set(shown)) == len(names)
    for each in shown:
        assert re.fullmatch(r"[/\w.\- :]{1,250}", each)
        assert posixpath.normpath(each) == each
        assert not each.startswith(("..", "/"))
        assert each != "."
