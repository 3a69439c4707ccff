"""Presets: what they set, what they leave to the job, and what is said of names and settings that are wrong."""

from pathlib import Path

import pytest
import yaml

from marless.core.errors import SpecError
from marless.jobs import presets
from marless.jobs import spec as specs
from marless.jobs.job import prepare
from marless.jobs.presets import PRESETS
from marless.jobs.sharing.base import initial_groups
from marless.jobs.spec import parse
from marless.learning.algos.registry import ALGORITHMS
from tests.unit.cost.comparison.synthetic import spec

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "scaling", "sharing", "accounting"),
    [
        ("vanilla", "fixed", "fixed", "serverful"),
        ("marless-minus", "fixed", "fixed", "paper"),
        ("no-scaling", "fixed", "marless", "paper"),
        ("no-sharing", "marless", "fixed", "paper"),
        ("marless", "marless", "marless", "paper"),
    ],
)
def test_the_five_of_the_paper(name, scaling, sharing, accounting):
    job = presets.preset(name).applied(spec(sharing={"name": "fixed", "groups": "shared"}))
    assert (job.scaling.name, job.sharing.name, job.bill.accounting) == (scaling, sharing, accounting)
    assert job.sharing.groups == "independent"
    assert presets.own_settings(job) == ()


def test_settings_of_the_same_policy_are_the_jobs_own_and_are_told():
    sharing = {"name": "marless", "window": 8, "samples": "drawn", "similarity": {"name": "kde", "samples": 64}}
    job = spec(scaling={"name": "marless", "window": 7}, sharing=sharing)
    both = presets.preset("marless").applied(job)
    assert (both.scaling.window, both.sharing.window) == (7, 8)
    assert presets.own_settings(both) == (
        "scaling.window 7 (default 10)",
        "sharing.samples drawn (default pooled)",
        "sharing.window 8 (default 10)",
        "sharing.similarity.samples 64 (default 256)",
    )
    assert presets.own_settings(presets.preset("vanilla").applied(job)) == ()


def test_a_setting_without_a_default_is_told():
    job = spec(scaling={"name": "adapt", "goal": 600.0, "window": 4})
    assert presets.own_settings(job) == ("scaling.goal 600.0 (no default)", "scaling.window 4 (default 5)")


def test_a_variant_differs_from_the_preset_it_varies_and_says_how():
    one, other = (presets.preset(name).applied(spec()) for name in ("marless", "marless-drawn"))
    assert presets.training_key(one) != presets.training_key(other)
    assert presets.own_settings(other) == ("sharing.samples drawn (default pooled)",)


_LEAN = ("scaling.beta 1.0 (default 0.5)", "scaling.compare logarithm (default ratio)")
_UNTIL_RETURNS_FALL = "sharing.split_threshold -0.1 (default null)"
_DRAWN = "sharing.samples drawn (default pooled)"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("marless-drawn", (_DRAWN,)),
        ("marless-lean", (*_LEAN, _UNTIL_RETURNS_FALL)),
        ("marless-frugal", (*_LEAN, "scaling.count samples (default actors)", _UNTIL_RETURNS_FALL)),
        ("marless-least", (*_LEAN, _DRAWN, _UNTIL_RETURNS_FALL)),
    ],
)
def test_the_constants_of_each_variant_are_those_that_its_results_were_made_with(name, settings):
    job = presets.preset(name).applied(spec())
    assert (job.scaling.name, job.sharing.name, job.bill.accounting) == ("marless", "marless", "paper")
    assert presets.own_settings(job) == settings


def test_settings_of_another_algorithm_do_not_stay(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("own:\n  algorithm: {name: impact, lr: 0.001}\nother:\n  algorithm: {lr: 0.002}\n")
    job = spec(algorithm={"name": "ippo", "truncation": "least", "gamma": 0.9})
    changed, same = (presets.preset(f"{file}:{name}").applied(job).algorithm for name in ("own", "other"))
    assert (changed.name, changed.lr, changed.gamma) == ("impact", 0.001, 0.99)
    assert (same.name, same.lr, same.gamma, same.truncation) == ("ippo", 0.002, 0.9, "least")


def test_the_rest_of_the_job_stays():
    job = spec(seed=5)
    changed = presets.preset("marless").applied(job)
    assert changed.model_copy(update={"scaling": job.scaling, "sharing": job.sharing, "bill": job.bill}) == job


def test_what_trains_identically_is_seen():
    one, other = (presets.preset(name).applied(spec()) for name in ("vanilla", "marless-minus"))
    assert presets.training_key(one) == presets.training_key(other)
    assert presets.training_key(one) != presets.training_key(presets.preset("no-sharing").applied(spec()))
    assert presets.training_key(one) != presets.training_key(one.model_copy(update={"seed": 1}))


def test_a_bill_that_may_end_the_job_is_part_of_its_training():
    job = spec(stop={"rounds": 3, "cost_usd": 1.0})
    keys = {presets.training_key(presets.preset(name).applied(job)) for name in ("vanilla", "marless-minus")}
    assert len(keys) == 2


def test_an_unknown_name_is_one_sentence_with_the_nearest():
    with pytest.raises(SpecError, match="unknown preset 'marles'; did you mean 'marless'\\? known: auto, marless, "):
        presets.presets("vanilla,marles")


@pytest.mark.parametrize(
    ("names", "said"), [("", "no preset is given"), (" , ", "no preset"), ("marless,marless", "twice")]
)
def test_names_that_make_no_comparison(names, said):
    with pytest.raises(SpecError, match=said):
        presets.presets(names)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("tight: {about: a tight window, accounting: billed, scaling: {name: marless, window: 3}}\n")
    return path


def test_a_file_may_hold_presets(file):
    [found] = presets.presets(f"{file}:tight")
    assert (found.name, found.about, found.accounting) == ("tight", "a tight window", "billed")
    job = found.applied(spec())
    assert (job.scaling.window, job.sharing.name) == (3, "fixed")


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ("[1]", "tight", "mapping of names"),
        ("tight: 3", "tight", "mapping of names"),
        (": :", "tight", "not valid YAML"),
        ("tight: {}", "tigt", "unknown preset 'tigt'; did you mean 'tight'"),
        ("tight: {accounting: cheap}", "tight", "accounting: 'cheap'; allowed: paper, billed, serverful"),
        ("tight: {scaling: marless}", "tight", "scaling is 'marless', not a section"),
        ("tight: {bill: {prices: x}}", "tight", "bill is set by `accounting`"),
        ("marless: {}", "marless", "is one of marless itself"),
        ("Tight_1: {}", "Tight_1", "lower-case letters"),
    ],
)
def test_mistakes_in_a_file_of_presets(file, content, name, said):
    file.write_text(content)
    with pytest.raises(SpecError, match=said) as mistake:
        presets.preset(f"{file}:{name}")
    assert str(mistake.value).startswith(str(file))
    assert "\n" not in str(mistake.value)


SCHEDULES = sorted(yaml.safe_load((ROOT / "examples/presets/schedules.yaml").read_text()))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("job", ["spread", "adversary", "spread-stellaris"])
def test_the_presets_of_schedules_run_the_examples(name, job):
    own = specs.load(ROOT / "examples" / f"{job}.yaml", [])
    applied = presets.preset(f"{ROOT}/examples/presets/schedules.yaml:{name}").applied(own)
    in_rounds = {"synchronous": name, "pipelined": name, "without-correction": "pipelined"}
    assert prepare(applied).spec.schedule.name == in_rounds.get(name, "stellaris")


@pytest.mark.parametrize("name", sorted(yaml.safe_load((ROOT / "examples/presets/ppo.yaml").read_text())))
def test_the_presets_of_ppo_change_one_setting_of_hopper(name):
    """Beside those that docs/algorithms/measurements.md begins from."""
    plain = ["model.normalise_observations=false", "algorithm.initial_std=1"]
    own = prepare(specs.load(ROOT / "examples" / "hopper.yaml", plain)).spec
    applied = prepare(presets.preset(f"{ROOT}/examples/presets/ppo.yaml:{name}").applied(own)).spec
    changed = [
        field
        for section in ("algorithm", "model")
        for field, value in vars(getattr(applied, section)).items()
        if value != getattr(getattr(own, section), field)
    ]
    assert len(changed) == (name != "default")


def test_a_file_that_is_not_there():
    with pytest.raises(SpecError, match=r"nowhere.yaml: cannot be read .*FILE.yaml:NAME"):
        presets.preset("nowhere.yaml:x")


def test_a_preset_that_cannot_run_this_job_names_itself(file):
    file.write_text("tight: {scaling: {name: marless, window: 1}}")
    with pytest.raises(SpecError, match=r"preset tight: scaling\.window"):
        presets.preset(f"{file}:tight").applied(spec())


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.modules))
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs_every_algorithm(preset, algorithm):
    document = {"env": {"name": "mpe/simple_spread"}, "algorithm": algorithm, "stop": {"rounds": 50}}
    job = PRESETS[preset].applied(parse(document, "job"))
    assert job.algorithm.name == algorithm
    assert prepare(job).spec == job


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.modules))
@pytest.mark.parametrize("scaling", ["fixed", "gns", "marless", "nitro"])
def test_every_scaling_policy_scales_every_algorithm(scaling, algorithm):
    document = {
        "env": {"name": "mpe/simple_spread"},
        "algorithm": algorithm,
        "scaling": scaling,
        "stop": {"rounds": 50},
    }
    prepared = prepare(parse(document, "job"))
    assert prepared.scaling.decide((), initial_groups("independent", prepared.spaces)).actors >= 1
