"""What a round used, against numbers worked out by hand."""

import pytest

from marless.core.settings import FunctionSize, FunctionsSpec
from marless.jobs.usage import outside_of_passes, usage, waiting
from tests.unit.cost.billing.rounds import invocation, round_of

SMALL = FunctionsSpec(actor=FunctionSize(vcpus=1, memory_mb=1024), learner=FunctionSize(vcpus=2, memory_mb=2048))


def seconds(*invocations, functions=SMALL, policies=("p", "q"), time="duration"):
    return [use.seconds for use in usage(round_of(*invocations, policies=policies), functions, time)]


def test_an_actor_is_used_while_it_runs_not_while_it_queues():
    [use] = usage(round_of(invocation("actor", 10.0, 11.25, queued_s=3.0, vcpu_s=9.0, index=7)), SMALL)
    assert (use.function, use.name, use.group) == ("actor", "", "")
    assert (use.seconds, use.vcpus, use.memory_mb, use.cold, use.init_s) == (1.25, 1, 1024, False, 0.0)
    assert (use.start_s, use.end_s) == (10.0, 11.25)


def test_an_evaluation_has_the_size_of_an_actor():
    [use] = usage(round_of(invocation("evaluation", 1.0, 2.0)), SMALL)
    assert (use.function, use.vcpus, use.memory_mb) == ("evaluation", 1, 1024)


def test_functions_of_a_learner_share_what_it_did_outside_of_their_passes():
    """A learner of 10 s; passes 1-3, 3-7 and 5-8, so 7 s of passes and 3 s of reading and publishing.

    vCPU seconds 2 + 2 + 4 + 3 + 1 = 12, so that each vCPU second bears 3 / 12 = 0.25 s; two vCPUs halve the work.
    """
    found = usage(
        round_of(
            invocation("learner", 0.0, 10.0),
            invocation("post_process", 1.0, 3.0, name="all", vcpu_s=2.0),
            invocation("policy", 3.0, 7.0, name="p", vcpu_s=2.0),
            invocation("policy", 3.0, 7.0, name="q", vcpu_s=4.0),
            invocation("critic", 5.0, 8.0, name="p", vcpu_s=3.0),
            invocation("critic", 5.0, 8.0, name="critic.all", vcpu_s=1.0),
            policies=("p", "q"),
        ),
        SMALL,
    )
    assert [(use.function, use.group, use.seconds) for use in found] == [
        ("post_process", "", 1.0 + 0.5),
        ("policy", "p", 1.0 + 0.5),
        ("policy", "q", 2.0 + 1.0),
        ("critic", "p", 1.5 + 0.75),
        ("critic", "", 0.5 + 0.25),
    ]
    assert {(use.vcpus, use.memory_mb) for use in found} == {(2, 2048)}


def test_each_agent_class_bears_its_own_learner():
    assert seconds(
        invocation("learner", 0.0, 4.0, index=0),
        invocation("policy", 1.0, 3.0, name="p", index=0),
        invocation("learner", 0.0, 8.0, index=1),
        invocation("policy", 1.0, 3.0, name="q", index=1),
    ) == [1.0 + 2.0, 1.0 + 6.0]


def test_passes_of_an_earlier_learner_do_not_shorten_the_one_that_found_them_done():
    """The first attempt published and died; the second took 0.5 s to find that out."""
    assert seconds(invocation("learner", 10.0, 10.5, attempt=2), invocation("policy", 4.0, 8.0, name="p")) == [
        2.0 + 0.5
    ]


def test_both_attempts_of_a_learner_count():
    assert seconds(
        invocation("learner", 0.0, 5.0),
        invocation("learner", 6.0, 10.0, attempt=2),
        invocation("policy", 7.0, 9.0, name="p"),
    ) == [1.0 + 5.0 + 2.0]


def test_functions_without_a_learner_have_no_overhead():
    assert seconds(invocation("policy", 7.0, 9.0, name="p")) == [1.0]


def test_functions_that_took_no_time_share_evenly():
    assert seconds(
        invocation("learner", 0.0, 3.0),
        invocation("policy", 1.0, 1.0, name="p"),
        invocation("critic", 1.0, 1.0, name="p"),
    ) == [1.5, 1.5]


def test_a_learner_that_nothing_ran_in_counts_itself():
    [use] = usage(round_of(invocation("learner", 0.0, 3.0, index=1)), SMALL)
    assert (use.function, use.seconds, use.memory_mb) == ("learner", 3.0, 2048)


def test_a_cold_learner_starts_a_container_per_critic_mixer_and_policy():
    found = usage(
        round_of(
            invocation("actor", 0.0, 1.0, cold=True, init_s=0.25),
            invocation("actor", 0.0, 1.0, cold=False, init_s=0.25),
            invocation("learner", 0.0, 1.0, cold=True, init_s=2.0),
            *(
                invocation(each, 0.0, 1.0, name="p")
                for each in ("post_process", "policy", "critic", "mixer", "curvature")
            ),
            policies=("p",),
        ),
        SMALL,
    )
    assert [(use.function, use.cold, use.init_s) for use in found] == [
        ("actor", True, 0.25),
        ("actor", True, 0.25),
        ("post_process", False, 0.0),
        ("policy", True, 2.0),
        ("critic", True, 2.0),
        ("mixer", True, 2.0),
        ("curvature", False, 0.0),
    ]


def test_a_start_is_charged_for_each_function_or_for_each_process():
    """Two workers, of which one is cold, ran two actors each; a cold learner ran a critic and a policy."""
    record = round_of(
        invocation("actor", 0.0, 1.0, worker="a", cold=True, init_s=0.25),
        invocation("actor", 1.0, 2.0, worker="a"),
        invocation("evaluation", 2.0, 3.0, worker="a"),
        invocation("actor", 0.0, 1.0, worker="b"),
        invocation("actor", 1.0, 2.0, worker="b"),
        invocation("learner", 0.0, 1.0, cold=True, init_s=2.0),
        *(invocation(each, 0.0, 1.0, name="p") for each in ("post_process", "policy", "critic")),
        policies=("p",),
    )
    found = {starts: [use.init_s for use in usage(record, SMALL, starts=starts)] for starts in ("function", "process")}
    #                             actors, evaluation and actors, then post-processing, policy and critic
    assert found["function"] == [0.25, 0.25, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0]
    assert found["process"] == [0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]


def test_a_clock_that_was_set_back_makes_nothing_negative():
    assert seconds(
        invocation("actor", 2.0, 1.0),
        invocation("learner", 5.0, 4.0),
        invocation("policy", 6.0, 5.0, name="p", vcpu_s=-1.0),
    ) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("passes", "outside"),
    [([], 10.0), ([(0, 10)], 0.0), ([(2, 4), (2, 4)], 8.0), ([(2, 6), (3, 4), (5, 7)], 5.0), ([(-5, 1), (9, 20)], 8.0)],
)
def test_time_outside_of_passes_is_the_wall_minus_their_union(passes, outside):
    inner = [invocation("policy", float(start), float(end)) for start, end in passes]
    assert outside_of_passes([invocation("learner", 0.0, 10.0)], inner) == outside


def cpu(*invocations):
    return seconds(*invocations, time="cpu")


def test_by_cpu_time_an_actor_counts_what_it_computed_and_never_more_than_it_took():
    waited = invocation("actor", 10.0, 14.0, vcpu_s=1.5)
    two_cores = invocation("evaluation", 10.0, 14.0, vcpu_s=6.0)
    lost = invocation("actor", 10.0, 14.0, vcpu_s=0.0)  # its worker died, and told nothing
    parameter = invocation("parameter", 10.0, 11.0, vcpu_s=0.25)
    assert cpu(waited, two_cores, lost, parameter) == [1.5, 4.0, 4.0, 0.25]
    assert seconds(waited, two_cores, lost, parameter) == [4.0, 4.0, 4.0, 1.0]


def test_by_cpu_time_functions_of_a_learner_share_all_cpu_seconds_of_its_process():
    """Passes of 1 and 3 CPU seconds in a process of 6: each bears 1.5 times its own; two vCPUs halve the work."""
    assert cpu(
        invocation("learner", 0.0, 90.0, vcpu_s=6.0),
        invocation("policy", 1.0, 50.0, name="p", vcpu_s=49.0, pass_cpu_s=1.0),
        invocation("policy", 1.0, 50.0, name="q", vcpu_s=49.0, pass_cpu_s=3.0),
    ) == [0.75, 2.25]


def test_by_cpu_time_a_learner_that_died_counts_its_duration():
    assert cpu(
        invocation("learner", 0.0, 5.0, vcpu_s=0.0),
        invocation("learner", 6.0, 10.0, attempt=2, vcpu_s=1.0),
        invocation("policy", 7.0, 9.0, name="p", pass_cpu_s=0.5),
    ) == [(5.0 + 1.0) / 2]


def test_by_cpu_time_passes_that_were_not_measured_share_by_their_durations():
    learner = invocation("learner", 0.0, 90.0, vcpu_s=6.0)
    passes = (invocation("policy", 1.0, 50.0, name=name, vcpu_s=vcpu_s) for name, vcpu_s in (("p", 10.0), ("q", 20.0)))
    assert cpu(learner, *passes) == [1.0, 2.0]


def test_by_cpu_time_functions_without_a_learner_count_their_passes():
    assert cpu(invocation("policy", 7.0, 9.0, name="p", pass_cpu_s=0.5)) == [0.25]
    idle = (invocation(each, 1.0, 1.0, name="p") for each in ("policy", "critic"))
    assert cpu(invocation("learner", 0.0, 3.0, vcpu_s=2.0), *idle) == [0.5, 0.5]


def test_by_cpu_time_a_start_counts_what_its_process_computed_until_it_was_ready():
    found = usage(
        round_of(
            invocation("actor", 0.0, 1.0, cold=True, init_s=4.0, init_cpu_s=0.75),
            invocation("actor", 0.0, 1.0, cold=True, init_s=4.0),
            invocation("actor", 0.0, 1.0, cold=True, init_cpu_s=0.75),  # its pool did not launch it, and bills no start
            invocation("learner", 0.0, 1.0, cold=True, init_s=5.0, init_cpu_s=2.0),
            invocation("policy", 0.0, 1.0, name="p", pass_cpu_s=1.0),
            policies=("p",),
        ),
        SMALL,
        "cpu",
    )
    assert [use.init_s for use in found] == [0.75, 4.0, 0.0, 2.0]


def test_waiting_is_how_far_actors_took_longer_than_they_computed():
    records = [
        round_of(
            invocation("actor", 0.0, 3.0, vcpu_s=1.0),
            invocation("evaluation", 0.0, 2.0, vcpu_s=1.0),
            invocation("actor", 0.0, 9.0, vcpu_s=0.0),
            invocation("learner", 0.0, 9.0, vcpu_s=1.0),
        )
    ]
    assert waiting(records) == 1.5
    assert waiting([round_of(invocation("actor", 0.0, 1.0, vcpu_s=2.0))]) == 0.0
    assert waiting([]) == 0.0
