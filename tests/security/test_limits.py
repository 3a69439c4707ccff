"""Small requests that cost much: each is refused in one sentence, quickly, and without holding up anybody else."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest
import yaml

from marless.core import documents
from marless.core.errors import CorruptError, MarlessError, NotFoundError, OverloadedError, SpecError, unknown_name
from marless.core.limits import MAX_AGENTS
from marless.jobs.job import prepare
from marless.jobs.spec import from_json, load, parse, spaces_from_json, spaces_to_json
from marless.learning.data.trajectory import TrajectorySchema
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.rpc import chunks
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from marless.services.coordinator.jobs import submission
from marless.services.coordinator.jobs.jobs import Jobs
from marless.services.coordinator.jobs.submission import Submission
from marless.services.learner_pool.tasks import LearnTasks
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from marless.services.learner_pool.updates import Updates
from tests.misbehaving_env import NAME

JOB = {"env": {"name": "mpe/simple_spread"}, "algorithm": {"name": "ippo"}, "stop": {"rounds": 1}}
SOON_S = 2.0
"""Generous, for a busy machine; unbounded, each of these took up to a minute."""


def with_options(**options: object) -> dict:
    return JOB | {"env": {"name": "mpe/simple_spread", "options": options}}


EXPENSIVE = {
    "unknown fields": JOB | {f"actors{k}": 0 for k in range(4500)},
    "unknown fields of a section": JOB | {"algorithm": {"name": "ippo"} | {f"lr{k}": 0 for k in range(5000)}},
    "wrong values in a list": JOB | {"model": {"hidden": ["wide"] * 12_000}},
    "many sinks": JOB | {"sinks": ["tensorboard"] * 5000},
    "many sinks that nobody knows": JOB | {"sinks": [f"sink{k}" for k in range(5000)]},
    "a long name": JOB | {"algorithm": "ippo" * 17_000},
    "a long field": JOB | {"actors" * 12_000: 1},
    "many groups": JOB | {"sharing": {"name": "fixed", "groups": {f"p{k}": [f"agent_{k}"] for k in range(3000)}}},
    "many members": JOB | {"sharing": {"name": "fixed", "groups": {"p": ["agent_0"] * 7000}}},
    "deep sections": with_options(a=json.loads("[" * 22 + "]" * 22)),
    "a long text": with_options(agents="9" * 20_000),
    "a whole number beyond all use": with_options(agents=10**4000),
}
REFUSED = {
    "unknown fields": "and 4480 more mistakes$",
    "unknown fields of a section": "and 4980 more mistakes$",
    "wrong values in a list": "and 11980 more mistakes$",
    "many sinks": "sinks: 5000 sinks; a job has 8 at most$",
    "many sinks that nobody knows": "sinks: 5000 sinks; a job has 8 at most$",
    "a long name": "68,000 characters; at most 10,000 are taken$",
    "a long field": "72,000 characters; at most 10,000 are taken$",
    "many groups": r"sharing\.groups: .* at most 1024 of them$",
    "many members": r"sharing\.groups\.p: .* at most 1024 of them$",
    "deep sections": "are nested more than 20 deep$",
    "a long text": "20,000 characters; at most 10,000 are taken$",
    "a whole number beyond all use": "agents may be 1,024 at most, got 1000",
}


@pytest.mark.parametrize("what", EXPENSIVE)
def test_a_small_spec_is_refused_quickly_and_in_few_words(what):
    text = json.dumps(EXPENSIVE[what])
    assert len(text) < 150_000
    started_s = time.process_time()
    with pytest.raises(SpecError, match=REFUSED[what]) as caught:
        prepare(from_json(text))
    assert time.process_time() - started_s < SOON_S
    assert len(str(caught.value)) < 8000


MERGES = "m0: &m0 {k: v}\n" + "\n".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, 12))
EXPENSIVE_YAML = {
    "mappings that are merged into one another": MERGES,
    "a number in base 60": "a: 1" + ":59" * 300_000,
    "a quarter of a million values": "- a\n" * 250_000,
    "a list that holds itself": "a: &a [*a, *a]",
}


@pytest.mark.parametrize("what", EXPENSIVE_YAML)
def test_small_yaml_is_refused_before_much_is_made_of_it(what):
    started_s = time.process_time()
    with pytest.raises(SpecError, match=r"^job\.yaml: "):
        documents.yaml_of(EXPENSIVE_YAML[what], "job.yaml")
    assert time.process_time() - started_s < SOON_S


def test_aliases_and_merged_mappings_of_a_useful_size_are_taken():
    text = "base: &b {a: 1, c: 2}\nmine: {<<: *b, a: 3}\nlist: [*b, *b]\n"
    taken = documents.yaml_of(text, "job.yaml")
    assert taken == {"base": {"a": 1, "c": 2}, "mine": {"a": 3, "c": 2}, "list": [{"a": 1, "c": 2}] * 2}


def test_what_nests_too_deep_for_the_parser_is_refused_too():
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 30 + "]" * 30):
        with pytest.raises(SpecError, match=r"nested more than|not valid JSON"):
            from_json(text)


def test_what_is_no_text_and_no_number_is_refused():
    for text, why in (
        ('{"env": {"name": "\\ud800"}}', "half a character"),
        ('{"\\udfff": 1}', "half a character"),
        ('{"seed": NaN}', "NaN is not a JSON number"),
        ('{"seed": -Infinity}', "-Infinity is not a JSON number"),
        ('{"seed": 9007199254740993}', "seed: got 9007199254740993; allowed: at most 2147483647"),
        ("1" * 5000, "not valid JSON"),
        (json.dumps(["x" * 1000] * 1100), "longer than 1,048,576 characters"),
        (json.dumps([0] * 20_001), "more than 20,000 values"),
    ):
        with pytest.raises(SpecError, match=why):
            from_json(text)


def test_aliases_that_multiply_are_refused_before_they_are_followed(tmp_path):
    laughs = ["a: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    laughs += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    (tmp_path / "bomb.yaml").write_text("\n".join(laughs))
    (tmp_path / "loop.yaml").write_text("a: &a [*a]")
    started_s = time.perf_counter()
    with pytest.raises(SpecError, match="more than 20,000 values"):
        load(tmp_path / "bomb.yaml")
    with pytest.raises(SpecError, match="nested more than"):
        load(tmp_path / "loop.yaml")
    assert time.perf_counter() - started_s < SOON_S


def test_every_mistake_is_counted_though_few_are_told():
    with pytest.raises(SpecError) as caught:
        parse(JOB | {f"field{k}": 0 for k in range(50)}, "job.yaml")
    told = str(caught.value).splitlines()
    assert len(told) == 21
    assert told[-1] == "job.yaml: and 30 more mistakes"


def test_a_sentence_repeats_little_of_what_it_was_given():
    sentence = unknown_name("agent", "x" * 1_000_000, [f"agent_{k}" for k in range(10_000)])
    assert len(sentence) < 1000
    assert sentence.endswith("and 9960 more")


def test_only_short_names_are_compared_and_only_with_some():
    for name, known in (("x" * 101, ["x" * 100]), ("zebras", [*(f"agent_{k:03}" for k in range(500)), "zebra"])):
        assert "did you mean" in unknown_name("agent", name[:-1], known[-1:])
        assert "did you mean" not in unknown_name("agent", name, known)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"agents": 4000}, "agents may be 1,024 at most, got 4000"),
        ({"agents": 3, "landmarks": 4000}, "landmarks may be 1,024 at most, got 4000"),
        ({"agents": 3, "max_cycles": 10**9}, "max_cycles may be 1,000,000 at most"),
    ],
)
def test_an_environment_that_is_too_large_is_refused_before_it_is_built(options, why):
    """4,000 agents were accepted, after 8 s and with 1.5 GB."""
    spec = from_json(json.dumps(with_options(**options)))
    tracemalloc.start()
    try:
        with pytest.raises(SpecError, match=why):
            prepare(spec)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_the_largest_environment_takes_little_to_look_at():
    spec = from_json(
        json.dumps(
            with_options(agents=512, landmarks=512) | {"actors": {"envs": 4, "steps": 1}, "model": {"hidden": [8]}}
        )
    )
    tracemalloc.start()
    try:
        prepare(spec)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"actors": {"envs": 65_536, "steps": 65_536}}, "make a trajectory of .* MiB, and an actor may upload 512"),
        (with_options(agents=200) | {"actors": {"envs": 80}}, "lower actors.envs or actors.steps"),
        ({"model": {"hidden": [8192] * 4}}, "nets of agent weigh 13,.* MiB .*, and a round may publish 512"),
        (
            {"model": {"hidden": [2048] * 2}, "functions": {"learner": {"memory_mb": 128}}},
            "to train 3 policies of .* functions.learner.memory_mb gives 128",
        ),
        ({"algorithm": {"name": "iql", "replay": {"capacity": 10**9}}}, "algorithm.replay.capacity"),
    ],
)
def test_what_could_never_fit_is_refused_before_anything_starts(job, why):
    with pytest.raises(SpecError, match=why):
        prepare(parse(JOB | job, "job.yaml"))


def spaces(**changes: object) -> EnvSpaces:
    fields = {"classes": (AgentClass("a", ("a",), 4, Discrete(3)),), "state_size": 0, "max_steps": None} | changes
    return EnvSpaces(**fields)


@pytest.mark.parametrize(
    "wrong",
    [
        spaces(classes=()),
        spaces(classes=(AgentClass("a", (), 4, Discrete(3)),)),
        spaces(classes=(AgentClass("a", ("a",), -4, Discrete(3)),)),
        spaces(classes=(AgentClass("a", ("a",), 2**40, Discrete(3)),)),
        spaces(classes=(AgentClass("a", ("a",), 4, Discrete(0)),)),
        spaces(classes=(AgentClass("a", ("a", "a"), 4, Discrete(3)),)),
        spaces(classes=(AgentClass("a", ("a",), 4, Discrete(3)),) * 2),
        spaces(classes=(AgentClass("a", tuple(f"a{k}" for k in range(MAX_AGENTS + 1)), 4, Discrete(3)),)),
        spaces(classes=(AgentClass("a", ("a" * 201,), 4, Discrete(3)),)),
        spaces(classes=tuple(AgentClass(each, (each,), 4, Box((0.0,) * 9000, (1.0,) * 9000)) for each in "ab")),
        spaces(state_size=-1),
        spaces(state_size=2**40),
        spaces(max_steps=0),
    ],
)
def test_spaces_that_no_environment_has_are_refused(wrong):
    with pytest.raises(SpecError):
        spaces_from_json(spaces_to_json(wrong))


TINY = TrajectorySchema(spaces(), 2, 1, with_state=False)


async def frames_of(header: learner_pool_pb2.UploadHeader):
    for frame in chunks.frames(header, []):
        yield frame


@pytest.mark.alone
@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ([("obs/0", "float32", [1])] * 20_000, "the header has 20,000 arrays, the job declares "),
        ([("obs/0", "float32", [2**62] * 40_000)], "'obs/0' has 40,000 sides; 4 are possible"),
        ([(name, *info) for name, info in TINY.shapes(2**40).items()], "boot_index is .*, the job declares "),
        ([("x" * 300_000, "y" * 300_000, [1])], r"arrays \['action/0', .* are missing or unknown"),
    ],
    ids=["arrays", "sides", "rows", "names"],
)
async def test_an_upload_header_is_refused_before_work_is_done_with_it(tmp_path, arrays, why):
    """That of many sides, 360 kB, held the learner pool's loop for 4 s."""
    buffer = TrajectoryBuffer(tmp_path, 2**24)
    buffer.open("job", TINY, epoch=0, round_=0)
    infos = [learner_pool_pb2.ArrayInfo(name=name, dtype=dtype, shape=shape) for name, dtype, shape in arrays]
    header = learner_pool_pb2.UploadHeader(job="job", arrays=infos)
    started_s = time.perf_counter()
    with pytest.raises(CorruptError, match=why) as caught:
        await buffer.receive(frames_of(header))
    assert time.perf_counter() - started_s < 0.5
    assert len(str(caught.value)) < 2000
    buffer.shutdown()


async def test_an_update_of_absurdly_many_actors_is_refused_at_once():
    updates = Updates(None, None, LearnTasks(None, None, None, None, None), None)
    for fields in ({"actors": 2**31 - 1}, {"actors": 1, "round": -1}, {"actors": 1, "epoch": 2**60}):
        with pytest.raises(SpecError, match="are possible"):
            await updates.update(learner_pool_pb2.UpdateRequest(job="job", **fields))
    groups = [common_pb2.Group(policy=f"p{k}", agents=["a"]) for k in range(100_000)]
    with pytest.raises(SpecError, match="number of policies of groups"):
        await updates.update(learner_pool_pb2.UpdateRequest(job="job", actors=1, groups=groups))


def beside_the_loop(monkeypatch: pytest.MonkeyPatch, step: str) -> list[bool]:
    """Have a step wait until the event loop has gone on, then refuse; what is returned says whether that came."""
    loop, went_on = asyncio.get_running_loop(), []

    def wait(*_: object) -> None:
        ticked = threading.Event()
        loop.call_soon_threadsafe(ticked.set)
        went_on.append(ticked.wait(SOON_S))
        raise SpecError("enough")

    monkeypatch.setattr(step, wait)
    return went_on


@pytest.mark.parametrize("step", ["jobs.from_json", "submission._checked"])
async def test_a_coordinator_reads_and_tries_a_spec_while_its_loop_goes_on(tmp_path, monkeypatch, step):
    went_on = beside_the_loop(monkeypatch, f"marless.services.coordinator.jobs.{step}")
    with pytest.raises(SpecError, match="enough"):
        await Jobs(tmp_path, None).submit(Submission(job="job", spec_json=json.dumps(JOB)))
    assert went_on == [True]


async def test_a_learner_pool_reads_a_spec_while_its_loop_goes_on(monkeypatch):
    went_on = beside_the_loop(monkeypatch, "marless.services.learner_pool.updates.from_json")
    with pytest.raises(SpecError, match="enough"):
        await Updates(None, None, LearnTasks(None, None, None, None, None), None).open(
            learner_pool_pb2.OpenJobRequest(job="job")
        )
    assert went_on == [True]


TICKING = """
import select, sys, time
longest_s = 0.0
while True:
    before_s = time.perf_counter()
    ended = select.select([sys.stdin], [], [], 0.005)[0]
    longest_s = max(longest_s, time.perf_counter() - before_s)
    if ended:
        break
print(longest_s)
"""
"""A program that says how long it stood still at most, once its standard input is closed."""


async def test_others_are_served_while_a_spec_is_read(tmp_path):
    """The coordinator's lease is five seconds: its loop must never stand still for long. It stood 12 and 40 s.

    What another process stands still meanwhile is the machine's: it is taken off.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    control = await asyncio.create_subprocess_exec(sys.executable, "-c", TICKING, **pipes)
    jobs = Jobs(tmp_path, None)
    longest_s = 0.0

    async def tick() -> None:
        nonlocal longest_s
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(0.005)
            longest_s = max(longest_s, time.perf_counter() - before_s)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    for document in EXPENSIVE.values():
        with pytest.raises(SpecError):
            await jobs.submit(Submission(job="job", spec_json=json.dumps(document)))
    ticking.cancel()
    longest_there_s = float((await control.communicate(b""))[0])
    assert longest_s - longest_there_s < SOON_S
    await jobs.stop()


async def test_environments_that_are_never_made_hold_nobody_up(tmp_path, monkeypatch):
    """Neither others, while they are waited for or given up, nor the end of the coordinator."""
    monkeypatch.setattr(submission, "PREPARE_S", 1.0)
    monkeypatch.setattr(submission, "MAX_AT_ONCE", 6)
    monkeypatch.setenv("MARLESS_ENV_MODULES", "tests.misbehaving_env")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    hanging = json.dumps(JOB | {"env": {"name": NAME, "options": {"way": "hold_the_lock"}}})
    jobs = Jobs(tmp_path, None)
    submitted = [asyncio.create_task(jobs.submit(Submission(job=f"j{n}", spec_json=hanging))) for n in range(6)]
    async with asyncio.timeout(SOON_S):
        while len(jobs._preparing._waiting) < len(submitted):  # noqa: ASYNC110  # what the threads do sets no event
            await asyncio.sleep(0.001)
        with pytest.raises(NotFoundError):
            await jobs.get("another")
    with pytest.raises(OverloadedError, match="6 jobs are being prepared already"):
        await jobs.submit(Submission(job="one-more", spec_json=json.dumps(JOB)))
    with pytest.raises(SpecError, match=f"environment {NAME}: was not made within 1 s"):
        await submitted[0]
    await asyncio.gather(*submitted, return_exceptions=True)
    async with asyncio.timeout(SOON_S):
        while jobs._preparing._threads:  # noqa: ASYNC110  # likewise
            await asyncio.sleep(0.001)
    stopped = asyncio.create_task(jobs.submit(Submission(job="last", spec_json=hanging)))
    await jobs.stop()
    with pytest.raises(MarlessError):
        await stopped


def test_a_document_within_the_limits_passes():
    documents.check(yaml.safe_load(yaml.safe_dump(with_options(agents=3, layout=["x" * 100] * 100))), "job.yaml")
