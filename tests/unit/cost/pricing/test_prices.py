"""The price table: ours as it is published, a user's over it, and a sentence for every mistake."""

from decimal import Decimal
from pathlib import Path

import pytest

from marless.core.errors import SpecError
from marless.core.settings import FunctionSize, FunctionsSpec
from marless.jobs import prices
from marless.jobs.prices import check_sizes, lambda_memory_mb, load


@pytest.fixture
def file(tmp_path):
    def written(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    return written


def test_ours_are_dated_and_say_where_they_are_from():
    ours = load()
    for section in (ours.lambda_, ours.fargate, ours.ec2, ours.redis):
        assert section.date.year >= 2026
        assert section.source.startswith("https://aws.amazon.com/")
    assert (ours.currency, ours.region, ours.backend) == ("USD", "us-east-1", "lambda")


def test_ours_hold_what_the_papers_paid():
    """Nitro's Lambda rates; Wei et al.'s machine, half of Stellaris's c6a.32xlarge; Nitro's and Stellaris's GPUs."""
    ours = load()
    rate = ours.lambda_.rate
    assert [rate.on_demand, rate.provisioned, rate.ready] == [
        Decimal("0.0000166667"),
        Decimal("0.0000097222"),
        Decimal("0.0000041667"),
    ]
    assert ours.instance("c6a.16xlarge").usd_h == Decimal("2.448") == ours.instance("c6a.32xlarge").usd_h / 2
    assert ours.instance("p3.2xlarge").usd_h == Decimal("3.06")


def test_prices_of_a_family_follow_its_vcpus():
    c6a = [price for _, price in load().family()]
    assert [price.vcpus for price in c6a] == [2, 4, 8, 16, 32, 48, 64, 96, 128, 192]
    assert {price.usd_h / price.vcpus for price in c6a} == {Decimal("0.03825")}
    assert all(price.memory_gb == 2 * price.vcpus for price in c6a)


def test_a_users_file_replaces_only_what_it_has(file):
    mine = load(file("redis: {nodes: {cache.r7g.large: 0.219}, node: cache.r7g.large}\nlambda: {request: 0}\n"))
    assert mine.redis_h() == Decimal("0.219")
    assert mine.redis.nodes["cache.t4g.small"] == Decimal("0.032")
    assert (mine.lambda_.request, mine.lambda_.rate) == (0, load().lambda_.rate)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lambda: {requests: 0}", "lambda.requests: unknown field 'requests'; did you mean 'request'?"),
        ("ec2: {instances: {c7a.large: {usd_h: 0.1, vcpus: 2}}}", "ec2.instances.c7a.large.memory_gb: is missing"),
        ("fargate: {vcpu_h: -1}", "fargate.vcpu_h: got -1; allowed: at least 0"),
        ("fargate: {vcpu_h: cheap}", "fargate.vcpu_h: got 'cheap'; allowed: a number"),
        ("backend: azure", "backend: got 'azure'; allowed: 'lambda', 'fargate' or 'ec2'"),
        ("lambda: 3", "lambda: got 3; allowed: a section with fields"),
        ("- 1", "prices are a mapping of sections"),
        ("a: [", "not valid YAML"),
    ],
)
def test_every_mistake_names_the_file_and_the_place(file, text, sentence):
    path = file(text)
    with pytest.raises(SpecError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: {sentence}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_sentence():
    with pytest.raises(SpecError, match=r"/nowhere.yaml: cannot be read \(No such file or directory\); give the path"):
        load("/nowhere.yaml")


def test_an_empty_file_changes_nothing(file):
    assert load(file("")).model_dump() == load().model_dump()


def test_a_missing_price_names_the_type_and_the_file_to_add_it_to(file):
    path = file("redis: {node: cache.r9.huge}\nec2: {serverful: c9x}\n")
    mine = load(path)
    for missing, name in ((lambda: mine.instance("c9x.large"), "c9x.large"), (mine.redis_h, "cache.r9.huge")):
        with pytest.raises(SpecError, match=rf"no price for .*{name}.*; add `.*{name}.*` to .*mine.yaml"):
            missing()
    with pytest.raises(SpecError, match=r"no price for any instance type c9x\.\*; add `.*c9x.large.*` to .*mine.yaml"):
        mine.family()
    with pytest.raises(SpecError, match=r"to a price file of your own, which `bill.prices` or --prices names"):
        load().instance("c9x.large")


def test_vcpus_of_a_lambda_come_with_memory():
    ours = load()
    sizes = [FunctionSize(vcpus=v, memory_mb=m) for v, m in ((1, 1024), (1, 2048), (0.5, 512), (2, 1024), (0.001, 128))]
    assert [lambda_memory_mb(size, ours) for size in sizes] == [1769, 2048, 885, 3538, 128]


def test_functions_too_large_for_a_lambda_are_refused_before_anything_runs(file):
    wide = FunctionsSpec(learner=FunctionSize(vcpus=6, memory_mb=2048))
    with pytest.raises(SpecError, match=r"functions.learner: 6 vCPUs and 2048 MB need 10614 MB .* at most 10240"):
        check_sizes(wide, load())
    check_sizes(wide, load(file("backend: fargate")))


def test_the_table_travels_with_the_package():
    assert prices.OURS.parent == Path(prices.__file__).parent
