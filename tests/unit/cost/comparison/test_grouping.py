"""Which runs are a group, and what it is called."""

import pytest

from marless.core.errors import SpecError
from marless.cost.comparison.grouping import differing, grouped
from tests.unit.cost.comparison.synthetic import JOB, spec

IPPO = JOB["algorithm"]


def runs(*jobs) -> list:
    return [(name, spec(**changes)) for name, changes in jobs]


SEEDS = runs(
    ("spread-ippo-seed0", {}),
    ("spread-vdn-seed0", {"algorithm": {"name": "vdn"}}),
    ("spread-ippo-seed1", {"seed": 1, "name": "other", "sinks": ["tensorboard"]}),
    ("spread-vdn-seed1", {"seed": 1, "algorithm": {"name": "vdn"}}),
)


def test_runs_that_differ_in_the_seed_alone_are_a_group():
    assert grouped(SEEDS) == {"ippo": (0, 2), "vdn": (1, 3)}


def test_groups_are_called_by_the_fewest_fields_that_tell_them_apart():
    swept = runs(
        *(
            (f"j-{lr}-{gamma}-seed{seed}", {"seed": seed, "algorithm": IPPO | {"lr": lr, "gamma": gamma}})
            for lr, gamma in ((1e-3, 0.9), (2e-3, 0.95))
            for seed in (0, 1)
        )
    )
    assert list(grouped(swept)) in (["lr=0.001", "lr=0.002"], ["gamma=0.9", "gamma=0.95"])
    both = runs(
        *(
            (f"j{lr}{gamma}-seed{seed}", {"seed": seed, "algorithm": IPPO | {"lr": lr, "gamma": gamma}})
            for lr in (1e-3, 2e-3)
            for gamma in (0.9, 0.95)
            for seed in (0, 1)
        )
    )
    found = grouped(both)
    assert len(found) == 4
    assert all("lr=" in label and "gamma=" in label for label in found)


def test_how_often_a_job_is_evaluated_is_no_name_for_its_length():
    lengths = runs(
        *(
            (f"j{n}-seed{seed}", {"seed": seed, "stop": {"rounds": n}, "evaluation": {}})
            for n in (20, 30)
            for seed in (0, 1)
        )
    )
    assert list(grouped(lengths)) == ["rounds=20", "rounds=30"]


def test_single_runs_are_called_by_their_ids():
    assert grouped(SEEDS[:2]) == {"spread-ippo-seed0": (0,), "spread-vdn-seed0": (1,)}
    assert list(grouped(SEEDS, "job")) == [name for name, _ in SEEDS]


def test_one_group_is_called_as_its_runs_without_their_seeds():
    assert grouped([SEEDS[0], SEEDS[2]]) == {"spread-ippo": (0, 1)}
    assert grouped(runs(("a", {}), ("b", {"seed": 1}))) == {"tiny": (0, 1)}


def test_ids_group_what_settings_would_not():
    found = runs(("x-seed0", {}), ("x-seed1", {"stop": {"rounds": 9}}), ("y-seed0", {}))
    assert grouped(found, "id") == {"x": (0, 1), "y": (2,)}


def test_fields_group_whatever_else_differs():
    found = runs(
        ("a", {}),
        ("b", {"stop": {"rounds": 9}}),
        ("c", {"algorithm": {"name": "vdn"}}),
        ("d", {"actors": {"count": 2}}),
    )
    assert grouped(found, "algorithm.name") == grouped(found, "algorithm") == {"ippo": (0, 1, 3), "vdn": (2,)}
    assert grouped(found, "algorithm.name, actors.count") == {
        "ippo count=4": (0, 1), "vdn count=4": (2,), "ippo count=2": (3,),
    }  # fmt: skip
    assert grouped(found, "algorithm.epochs") == {"epochs=1": (0, 1, 3), "epochs=none": (2,)}
    assert list(grouped(found, "env.options.agents")) == ["agents=2"]


def test_a_mapping_groups_by_all_that_is_in_it():
    """That of the first job is empty, so that nothing is in it."""
    found = runs(
        *((name, {"env": {"name": "mpe/simple_spread", "options": options}})
          for name, options in (("a", {}), ("b", {"agents": 2}), ("c", {"agents": 3}), ("d", {"agents": 2})))
    )  # fmt: skip
    assert grouped(found, "env.options") == {
        "options=none": (0,), 'options={"agents": 2}': (1, 3), 'options={"agents": 3}': (2,),
    }  # fmt: skip
    assert grouped(found[1:], "env.options") == {'options={"agents": 2}': (0, 2), 'options={"agents": 3}': (1,)}


def test_what_is_not_equal_within_a_group_is_told():
    one, other = spec(), spec(seed=1, name="other", actors={"count": 2}, bill={"accounting": "paper"})
    dear = spec(bill={"prices": {"lambda": {"granularity_ms": 100}}})
    assert differing([one, other], billed=True) == ["actors.count", "actors.envs", "actors.steps"]
    assert differing([one, dear], billed=False) == []
    assert all(field.startswith("bill.prices") for field in differing([one, dear], billed=True))
    assert differing([one, dear], billed=True)


def test_equal_ids_of_two_folders_are_numbered():
    assert list(grouped(runs(("a", {}), ("a", {"seed": 3})), "job")) == ["a (1)", "a (2)"]


def test_an_unknown_field_is_told_with_the_nearest():
    with pytest.raises(SpecError, match=r"no job has a field 'algoritm\.name'; did you mean algorithm.name"):
        grouped(SEEDS, "algoritm.name")
    with pytest.raises(SpecError, match="no job has a field 'xyzzy'; `marless settings` lists them"):
        grouped(SEEDS, "xyzzy")
