"""What must hold of a job that was struck: the words of the last column of the table of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from marless.jobs.job import prepare
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.events import read
from tests.faults.jobs import CAPACITY
from tests.faults.results import Result, check_same, check_versions, result_of
from tests.faults.struck import StruckJob
from tests.integration import one_process, one_process_asynchronous

ACTING = ("actor", "evaluation", "parameter")
"""Functions that are no part of a learner's work."""
STALENESS = {"synchronous": 0, "pipelined": 1}
Promise = Callable[[StruckJob, str], None]
"""A promise, checked with what follows the colon behind its name; raises AssertionError."""


def _records(struck: StruckJob) -> list[RoundRecord]:
    return list(struck.folder.records())


def _billed(struck: StruckJob, _: str) -> None:
    """Each attempt at a function is billed once, and in each record those of its rollouts and updates alone."""
    records = _records(struck)
    times = Counter((each.id, each.attempt) for record in records for each in record.invocations)
    assert set(times.values()) <= {1}, "a function is billed twice"
    for record in records:
        acted = {each.id for each in record.invocations if each.function == "actor"}
        learned = {each.id.split("/")[1] for each in record.invocations if each.function not in ACTING}
        if record.aggregation is None:
            assert (len(acted), learned) == (record.actors, {f"{record.round}"})
        else:
            happened = Counter(_kinds(record))
            assert (len(acted), len(learned)) == (happened["rollout"], happened["gradient"])


def _recorded(struck: StruckJob, _: str) -> None:
    """Each round is recorded once, and made one version of what it trained."""
    records = _records(struck)
    assert len(records) == struck.rounds
    check_versions(records)


def _same(struck: StruckJob, _: str) -> None:
    """Records, weights and evaluations are those of the undisturbed job, to the last bit."""
    check_same(result_of(struck.folder), _undisturbed(struck))


def _learned(struck: StruckJob, _: str) -> None:
    """Records and weights are; which rounds are evaluated depends on where the job ended meanwhile."""
    check_same(result_of(struck.folder), _undisturbed(struck), evaluations=False)


def _undisturbed(struck: StruckJob) -> Result:
    assert struck.undisturbed, "what the job comes to differs from run to run"
    return struck.undisturbed


def _computed(struck: StruckJob, _: str) -> None:
    """The weights are those that plain calls in one process come to."""
    one_process.check_same_weights(struck.folder, STALENESS[struck.cell.schedule])


def _followed(struck: StruckJob, _: str) -> None:
    """The weights are those that one process comes to from the recorded events, which use each rollout at most once."""
    records = _records(struck)
    made = [record.aggregation for record in records if record.aggregation]
    gradients = [each for one in made for each in one.gradients]
    assert len(gradients) >= struck.rounds
    assert set(Counter(each.learner for each in gradients).values()) == {1}, "a gradient is part of two versions"
    learned = Counter(number for each in gradients for number in each.rollouts)
    assert set(learned.values()) == {1}, "a rollout is part of two gradients"
    one_process_asynchronous.check_counts(prepare(struck.folder.load()[0]), records)
    one_process_asynchronous.check_same_weights(struck.folder)


def _trained(struck: StruckJob, times: str) -> None:
    """Each round was computed so often, by whichever pool; more often only if a fault had cut it off."""
    found = Counter(struck.trained)
    assert list(struck.trained) == sorted(struck.trained)
    assert found.keys() == set(range(struck.rounds))
    assert min(found.values()) >= int(times)
    again = {number for number, count in found.items() if count > int(times)}
    assert again <= struck.excused, f"rounds {sorted(again - struck.excused)} were trained again"


def _sampled(struck: StruckJob, times: str) -> None:
    """Each round was sampled so often; "1,2": the first once, the second twice."""
    each = [int(word) for word in times.split(",")]
    wanted = each * struck.rounds if len(each) == 1 else each
    assert list(struck.sampled) == [number for number in range(struck.rounds) for _ in range(wanted[number])]


def _restored(struck: StruckJob, rounds: str) -> None:
    """A checkpoint was restored once: that of so many rounds, or the newest one before the round of the loss."""
    every = struck.folder.load()[0].checkpoint.every
    assert list(struck.restored) == [int(rounds or int(struck.cell.when.rpartition(":")[2]) // every * every)]


def _attempts(struck: StruckJob, wanted: str) -> None:
    """The greatest number of attempts of a function, by round."""
    found = [max(each.attempt for each in record.invocations) for record in _records(struck)]
    assert found == [int(word) for word in wanted.split(",")]


def _retried(struck: StruckJob, _: str) -> None:
    """Some function ran again on another worker."""
    assert any(each.attempt > 1 for record in _records(struck) for each in record.invocations)


def _measured(struck: StruckJob, _: str) -> None:
    """The policies' measurements are those of the undisturbed job, which shared and split."""
    whole = _undisturbed(struck).records
    assert [record.distances for record in _records(struck)] == [record.distances for record in whole]
    assert any(record.distances for record in whole)
    groups = [len(record.groups) for record in whole]
    assert min(groups) < groups[0] == max(groups[4:])


def _grouped(struck: StruckJob, numbers: str) -> None:
    """So many groups trained in each round."""
    assert [len(record.groups) for record in _records(struck)] == [int(word) for word in numbers.split(",")]


def _changed(struck: StruckJob, _: str) -> None:
    """The groups change every other round, and so does the number of actors."""
    records = _records(struck)
    assert [len(record.groups) for record in records[:5]] == [3, 3, 1, 1, 3]
    assert len({record.actors for record in records}) == 3


def _wrapped(struck: StruckJob, _: str) -> None:
    """Every env step was inserted into the replay once, and none was lost, though it wraps and the groups change."""
    records = _records(struck)
    for record in records:
        counters = record.metrics["replay.agent"]
        assert counters["inserted"] == record.env_steps == counters["size"] + counters["dropped"], "samples are lost"
        assert counters["lost"] == 0, "a replay was lost"
    assert records[-1].metrics["replay.agent"]["dropped"] > CAPACITY, "the replay has not gone around"
    assert len({len(record.groups) for record in records}) > 1, "the groups do not change"


def _none_lost(struck: StruckJob, _: str) -> None:
    assert _lost(struck) == 0


def _lost(struck: StruckJob) -> int:
    newest = _records(struck)[-1].aggregation
    assert newest
    return newest.lost


def _went_back(struck: StruckJob, _: str) -> None:
    """The records say that what was under way was lost with the versions."""
    assert any("restart" in _kinds(record) for record in _records(struck))


def _kinds(record: RoundRecord) -> Sequence[str]:
    assert record.aggregation
    return [each.kind for each in read(record.aggregation.arrivals)]


def _kept(struck: StruckJob, _: str) -> None:
    """Every version is made by an update, and what was sampled is in the replay once."""
    for record in _records(struck):
        assert record.aggregation
        assert [each.staleness for each in record.aggregation.gradients] == [0]
        for state, numbers in record.metrics.items():
            if state.startswith("replay."):
                assert numbers["inserted"] == numbers["size"] == record.env_steps
                assert numbers["dropped"] == numbers["lost"] == 0


def _regrouped(struck: StruckJob, _: str) -> None:
    """Groups change together with a restart, and policies that nobody trains stay as they are."""
    records = _records(struck)
    agents = prepare(struck.folder.load()[0]).spaces.agents
    for before, record in pairwise(records):
        if len(before.groups) != len(record.groups):
            assert "restart" in _kinds(record)[:1]
        for name in set(agents) - {group.policy for group in record.groups}:
            assert record.versions[name] == before.versions[name]


EVERYWHERE = (_recorded, _billed)
"""What holds in every cell."""
PROMISES: Mapping[str, Promise] = {
    "same": _same,
    "learned": _learned,
    "computed": _computed,
    "followed": _followed,
    "trained": _trained,
    "sampled": _sampled,
    "restored": _restored,
    "attempts": _attempts,
    "retried": _retried,
    "measured": _measured,
    "groups": _grouped,
    "changed": _changed,
    "wrapped": _wrapped,
    "none-lost": _none_lost,
    "went-back": _went_back,
    "kept": _kept,
    "regrouped": _regrouped,
}
