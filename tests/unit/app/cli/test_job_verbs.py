"""The verbs that speak to a coordinator: what they print where, how they exit, and what they say of every mistake."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml

import marless as marless_package
from marless.core.errors import OverloadedError, SpecError
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2 as pb
from tests import tokens
from tests.scripted_coordinator import ScriptedCoordinator
from tests.unit.app.cli.conftest import JOB

LOG = (
    '{"timestamp": "2027-01-01T12:00:00.123456Z", "level": "info", "event": "round.done", "round": 3}',
    '{"timestamp": "2027-01-01T12:00:01.123456Z", "level": "error", "event": "rollout.lost", "workers": 2}',
    '{"timestamp": "2027-01-01T12:00:02.123456Z", "level": "error", "event": "job.ended", "reason": "out of luck", '
    '"detail": "Traceback:\\n  a line"}',
)
ONE_JOB = ("get", "watch", "logs", "wait", "cancel", "resume", "delete", "download")
"""Verbs that take a job's id."""


def test_submit_prints_the_id_and_how_to_go_on(coordinator, marless, job_file):
    code, out, err = marless("submit", job_file, "--set", "stop.rounds=9")
    [request] = coordinator.asked(pb.SubmitJobRequest)
    assert (code, out) == (0, f"{request.job}\n")
    assert err == f"marless: submitted; `marless watch {request.job}` shows it\n"
    assert json.loads(request.spec_json)["stop"]["rounds"] == 9


def test_submit_under_an_id_of_ones_own(coordinator, marless, job_file):
    assert marless("submit", job_file, "--job", "mine")[:2] == (0, "mine\n")
    code, out, err = marless("submit", job_file, "--job", "mine")
    assert (code, out, err) == (1, "", "marless: job 'mine' exists; choose another id\n")
    assert marless("submit", job_file, "--job", "mine", "--if-exists", "replace")[0] == 0
    assert coordinator.asked(pb.SubmitJobRequest)[-1].if_exists == pb.IF_EXISTS_REPLACE
    code, _, err = marless("submit", job_file, "--if-exists", "use")
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("how", ["--wait", "--follow"])
@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 100), ("CANCELLED", 103)])
def test_submit_may_stay_until_the_end(coordinator, marless, job_file, how, state, code):
    def live() -> None:
        while "mine" not in coordinator.servicer.jobs:
            pass
        coordinator.happen("mine", rounds=4, state=state, reason="out of luck", log=LOG)

    life = threading.Thread(target=live)
    life.start()
    got, out, err = marless("submit", job_file, "--job", "mine", how, "-o", "json")
    life.join()
    assert (got, json.loads(out)["state"]) == (code, state)
    assert ("round 2 " in err and "round 4 " in err) == (how == "--follow")
    assert (
        "marless: job mine failed: out of luck\nmarless: its log: 12:00:01.123 error   rollout.lost workers=2\n" in err
    ) == (state == "FAILED")


def test_jobs_are_listed_for_people_and_for_programs(coordinator, marless):
    coordinator.add("one").job.greedy_return = -3.25
    coordinator.add("two", "FAILED")
    coordinator.add("three")
    _, table, _ = marless("list")
    header, *rows = table.splitlines()
    assert header.split()[:3] == ["job", "state", "rounds"]
    assert [row.split()[:2] for row in rows] == [["one", "RUNNING"], ["two", "FAILED"], ["three", "RUNNING"]]
    assert "-3.25" in rows[0]
    assert marless("list", "-o", "name") == (0, "one\ntwo\nthree\n", "")
    assert marless("list", "-o", "name", "--state", "failed")[1] == "two\n"
    assert [job["job"] for job in json.loads(marless("list", "-o", "json")[1])] == ["one", "two", "three"]
    assert [json.loads(line)["job"] for line in marless("list", "-o", "jsonl")[1].splitlines()] == [
        "one",
        "two",
        "three",
    ]
    assert [job["greedy_return"] for job in yaml.safe_load(marless("list", "-o", "yaml")[1])] == [-3.25, None, None]


def at_80_columns(marless, monkeypatch, *argv) -> list[str]:
    """The lines of a table as a terminal of 80 columns shows them."""
    from rich.console import Console

    monkeypatch.setattr("marless.app.cli.output.console", lambda **_: Console(width=80, markup=False, highlight=False))
    return [line.rstrip() for line in marless(*argv)[1].splitlines()]


@pytest.mark.parametrize("won", [None, 0.5])
def test_at_80_columns_a_list_shows_whole_words(coordinator, marless, monkeypatch, won):
    for number in range(3):
        job = coordinator.add(f"spread-20261122-18000{number}", "SUCCEEDED").job
        job.rounds, job.env_steps, job.greedy_return, job.random_return = 400, 1_600_000, -12.34, -1234.5
        if won is not None:
            job.win_rate = won
    header, *rows = at_80_columns(marless, monkeypatch, "list")
    assert max(map(len, rows)) <= 80 and "…" not in "".join(rows)
    assert rows[0].split()[:5] == ["spread-20261122-180000", "SUCCEEDED", "400", "-12.34", "-1,234.50"]
    assert header.split() == ["job", "state", "rounds", "return", "random", "won" if won else "accepted"]
    assert ("50%" in rows[0]) == (won is not None)


def test_an_id_that_is_too_long_for_the_terminal_goes_on_below(coordinator, marless, monkeypatch):
    coordinator.add(long := "x" * 100, "SUCCEEDED")
    rows = at_80_columns(marless, monkeypatch, "list")[1:]
    assert "".join(row.split()[0] for row in rows) == long and "SUCCEEDED" in rows[0]


def test_a_list_is_sorted_filtered_and_cut(coordinator, marless):
    for number, (name, mean) in enumerate([("a-1", -3.0), ("b-1", None), ("a-2", -1.0), ("a-3", -2.0)]):
        job = coordinator.add(name).job
        job.accepted_s = 1e9 - number
        if mean is not None:
            job.greedy_return = mean

    def names(*argv: str) -> list[str]:
        return marless("list", "-o", "name", *argv)[1].split()

    assert names("--limit", "2") == ["a-1", "b-1"]
    assert names("--limit", "1e0", "--reverse") == ["a-3"]
    assert names("--sort", "return") == ["a-2", "a-3", "a-1", "b-1"]
    assert names("--sort", "return", "--reverse", "--limit", "1") == ["a-1"]
    assert names("--sort", "job") == ["a-1", "a-2", "a-3", "b-1"]
    assert names("--name", "a-*", "--sort", "return", "--limit", "2") == ["a-2", "a-3"]
    assert names("--name", "-1") == ["a-1", "b-1"]
    assert names("--name", "?-2") == ["a-2"]


def test_an_empty_list_is_one_for_programs_too(coordinator, marless):
    assert marless("list", "-o", "json")[1] == "[]\n"
    assert marless("list", "-o", "name")[1] == ""


@pytest.mark.parametrize(
    ("output", "read"), [("json", json.loads), ("jsonl", json.loads), ("yaml", yaml.safe_load), ("name", str.strip)]
)
def test_one_job_in_every_format(coordinator, marless, output, read):
    coordinator.add("one", "FAILED").job.reason = "[red]out[/red] of luck"
    code, out, err = marless("get", "one", "-o", output)
    assert (code, err) == (0, "")
    assert read(out) == "one" if output == "name" else read(out)["reason"] == "[red]out[/red] of luck"


def test_one_job_for_people_shows_every_word_as_it_is(coordinator, marless):
    coordinator.add("one", "FAILED").job.reason = reason = "[red]out[/red] of luck " * 20 + "end"
    assert reason in marless("get", "one")[1]


def test_watch_says_each_evaluation_and_ends_as_the_job_did(coordinator, marless):
    coordinator.add("one", log=list(LOG))
    coordinator.happen("one", rounds=4, state="FAILED", reason="out of luck")
    code, out, err = marless("watch", "one")
    assert code == 100
    assert [line.split(" · ")[0] for line in err.splitlines()[:2]] == ["round 2", "round 4"]
    assert err.splitlines()[2:] == [
        "marless: job one failed: out of luck",
        "marless: its log: 12:00:01.123 error   rollout.lost workers=2",
        "marless: `marless logs one` shows more",
    ]
    assert "FAILED" in out


def test_watch_prints_the_records_for_programs(coordinator, marless):
    coordinator.add("one")
    coordinator.happen("one", rounds=70, state="SUCCEEDED")
    code, out, _ = marless("watch", "one", "-o", "jsonl")
    assert code == 0
    assert out.splitlines() == coordinator.servicer.jobs["one"].records


def test_logs_for_people_and_as_they_are(coordinator, marless):
    coordinator.add("one", "FAILED", log=list(LOG))
    code, out, _ = marless("logs", "one", "--tail", "2")
    assert (code, out.splitlines()) == (
        0,
        [
            "12:00:01.123 error   rollout.lost workers=2",
            "12:00:02.123 error   job.ended reason=out of luck",
            "    Traceback:",
            "      a line",
        ],
    )
    assert marless("logs", "one", "-f", "-o", "jsonl")[1].splitlines() == list(LOG)


def test_wait_tells_by_its_exit_code(coordinator, marless):
    coordinator.add("one")
    code, out, err = marless("wait", "one", "--timeout", "0.1", "-o", "name")
    assert (code, out, err) == (101, "one\n", "marless: job one has not ended within 0.1 s; it continues\n")
    coordinator.happen("one", state="CANCELLED")
    assert marless("wait", "one")[0] == 103


def test_cancel_resume_delete(coordinator, marless):
    coordinator.add("one").job.rounds = 7
    assert marless("delete", "one")[0] == 1
    assert marless("cancel", "one", "-o", "name") == (0, "one\n", "marless: job one has ended: CANCELLED\n")
    code, _, err = marless("resume", "one", "--set", "stop.rounds=20")
    assert (code, err) == (0, "marless: resumed after round 7; `marless watch one` shows it\n")
    assert json.loads(coordinator.asked(pb.ResumeJobRequest)[0].stop_json) == {"rounds": 20}
    assert marless("resume", "one")[::2] == (1, "marless: job 'one' has not ended; cancel it first\n")
    marless("cancel", "one")
    assert marless("delete", "one") == (0, "", "marless: deleted one\n")


def test_several_jobs_at_once(coordinator, marless):
    for job in ("one", "two", "three"):
        coordinator.add(job)
    assert [job["job"] for job in json.loads(marless("get", "two", "one", "two", "-o", "json")[1])] == ["two", "one"]
    _, out, err = marless("cancel", "one", "two", "-o", "name")
    assert (out, err.splitlines()) == (
        "one\ntwo\n",
        [f"marless: job {job} has ended: CANCELLED" for job in ("one", "two")],
    )
    code, _, err = marless("delete", "one", "nobody", "three", "two")
    assert (code, err.splitlines()) == (
        102,
        [
            "marless: deleted one",
            "marless: there is no job 'nobody'",
            "marless: job 'three' has not ended; cancel it first",
            "marless: deleted two",
        ],
    )
    assert list(coordinator.servicer.jobs) == ["three"]


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["SUCCEEDED", "SUCCEEDED"], 0),
        (["SUCCEEDED", "CANCELLED"], 103),
        (["CANCELLED", "FAILED"], 100),
        (["SUCCEEDED", "RUNNING"], 101),
    ],
)
def test_waiting_for_several_jobs_ends_as_the_worst_of_them(coordinator, marless, states, code):
    for number, state in enumerate(states):
        coordinator.add(f"job-{number}", state)
    got, out, err = marless("wait", "job-0", "job-1", "--timeout", "0.05", "-o", "jsonl")
    assert (got, [json.loads(line)["state"] for line in out.splitlines()]) == (code, states)
    assert ("has not ended within 0.05 s" in err) == (code == 101)


def test_waiting_for_several_jobs_lasts_until_the_last_has_ended(coordinator, marless):
    for job in ("one", "two", "three"):
        coordinator.add(job)

    def live() -> None:
        for job in ("two", "one", "three"):
            coordinator.happen(job, rounds=1, state="SUCCEEDED")

    life = threading.Timer(0.1, live)
    life.start()
    assert marless("wait", "one", "two", "three", "-o", "name")[:2] == (0, "one\ntwo\nthree\n")
    life.join()


def test_a_job_that_another_shell_deletes_keeps_nobody_waiting(coordinator, marless):
    for job in ("one", "two"):
        coordinator.add(job)

    def live() -> None:
        while not coordinator.asked(pb.WatchJobRequest):
            time.sleep(0.01)
        coordinator.servicer.jobs.pop("two")
        coordinator.happen("one", state="SUCCEEDED")

    life = threading.Thread(target=live)
    life.start()
    code, out, err = marless("wait", "one", "two", "-o", "name")
    life.join()
    assert (code, out, err) == (102, "one\n", "marless: there is no job 'two'\n")


def test_waiting_for_several_jobs_reports_unknown_ones_and_waits_for_the_others(coordinator, marless):
    coordinator.add("one")
    code, out, err = marless("wait", "nobody", "one", "--timeout", "0.1", "-o", "name")
    waits = "marless: job one has not ended within 0.1 s; it continues\n"
    assert (code, out, err) == (101, "one\n", f"marless: there is no job 'nobody'\n{waits}")
    coordinator.happen("one", state="SUCCEEDED")
    assert marless("wait", "nobody", "one", "-o", "name")[:2] == (102, "one\n")
    assert marless("wait", "nobody", "nothing")[0] == 102


def test_a_job_may_come_from_standard_input(coordinator, marless, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(JOB)))
    assert marless("submit", "-", "--job", "mine", "--set", "stop.env_steps=1e6")[:2] == (0, "mine\n")
    assert json.loads(coordinator.asked(pb.SubmitJobRequest)[0].spec_json)["stop"]["env_steps"] == 1_000_000
    monkeypatch.setattr("sys.stdin", io.StringIO("{seed: -1}"))
    code, _, err = marless("submit", "-")
    assert code == 2 and "standard input: seed: got -1" in err


@pytest.mark.parametrize(("given", "tail"), [("2", 2), ("1e1", 10), ("1.5", None), ("-1", None), ("many", None)])
def test_whole_numbers_of_options_may_have_an_exponent(coordinator, marless, given, tail):
    coordinator.add("one", "FAILED", log=[LOG[0]] * 12)
    code, out, err = marless("logs", "one", "--tail", given)
    assert (code, len(out.splitlines())) == ((0, tail) if tail else (2, 0))
    assert tail or "less than 0" in err or "is not a whole number" in err


def test_the_version_is_said_in_every_way():
    said = [
        start("--version"),
        subprocess.Popen([sys.executable, "-m", "marless", "--version"], stdout=subprocess.PIPE, text=True),
    ]
    assert {process.communicate(timeout=20)[0] for process in said} == {f"marless {marless_package.__version__}\n"}


def test_resume_may_stay_and_shows_what_is_new(coordinator, marless):
    coordinator.add("one", "CANCELLED")
    coordinator.happen("one", rounds=4)
    resume = coordinator.servicer.ResumeJob

    async def and_runs_on(request, context):
        answer = pb.ResumeJobResponse()
        answer.CopyFrom(await resume(request, context))
        await coordinator._happen(coordinator.servicer.jobs["one"], 2, "SUCCEEDED", "done", ())
        return answer

    coordinator.replace("ResumeJob", and_runs_on)
    code, _, err = marless("resume", "one", "--follow")
    assert code == 0
    [line] = err.splitlines()  # nothing of the rounds before, but the rate is of two rounds
    assert [line.split(" · ")[at] for at in (0, 2)] == ["round 6", "200/s"]


def test_download_prints_where_it_is(coordinator, marless, tmp_path):
    coordinator.add("one", files={"job.json": b"{}", "a/b": b"12"})
    assert marless("download", "one") == (0, "one\n", "marless: 2 files, 0.0 MB\n")
    assert (tmp_path / "one/a/b").read_bytes() == b"12"
    assert marless("download", "one", "--to", tmp_path / "x")[1] == f"{tmp_path}/x\n"


# What can be wrong: one sentence each, the right exit code, nothing on standard output, no traceback.


@pytest.mark.parametrize("verb", ONE_JOB)
def test_an_unknown_job_exits_with_102(coordinator, marless, verb):
    assert marless(verb, "nobody") == (102, "", "marless: there is no job 'nobody'\n")


@pytest.mark.parametrize("verb", [*ONE_JOB, "list"])
def test_without_a_coordinator_every_verb_says_what_to_do(marless, monkeypatch, tmp_path, verb):
    monkeypatch.setattr("marless.app.cli.options.CONTACT_S", 0.05)
    monkeypatch.setenv("MARLESS_COORDINATOR", f"unix:{tmp_path}/none.sock")
    code, out, err = marless(*((verb,) if verb == "list" else (verb, "one")))
    sentence = (
        f"no coordinator at unix:{tmp_path}/none.sock: start one with `marless up`, or name yours with --coordinator"
    )
    assert (code, out, err) == (1, "", f"marless: {sentence}\n")


@pytest.mark.parametrize("verb", [*ONE_JOB, "list"])
def test_a_wrong_token_is_named_at_every_verb(marless, monkeypatch, tmp_path, verb):
    with ScriptedCoordinator(tmp_path, Security(tokens=tokens.made(tmp_path / "tokens"))) as coordinator:
        monkeypatch.setenv("MARLESS_TOKEN", "wrong")
        code, out, err = marless(verb, *([] if verb == "list" else ["one"]), "--coordinator", coordinator.address)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "token is missing or wrong; set MARLESS_TOKEN" in err and str(tmp_path) in err


@pytest.mark.parametrize(
    "argv",
    [
        ("list", "--state", "RUNING"),
        ("list", "-o", "xml"),
        ("get",),
        ("get", "one", "--no-such-flag"),
        ("logs", "one", "--tail", "-1"),
        ("logs", "one", "--tail", "some"),
        ("wait", "one", "--timeout", "-1"),
        ("wait", "one", "--timeout", "soon"),
        ("resume", "one", "--set", "algorithm.lr=1"),
        ("resume", "one", "--set", "stop.rounds"),
        ("resume", "one", "--set", "stop.steps=3"),
        ("submit", "job.yaml", "--if-exists", "perhaps"),
        ("submit", "job.yaml", "--job", "Not An Id"),
        ("submit", "none.yaml"),
        ("list", "--coordinator", "example.org:1234"),
        ("nonsense",),
    ],
)
def test_a_mistake_on_the_command_line_exits_with_2(coordinator, marless, job_file, argv):
    coordinator.add("one", "FAILED")
    code, out, err = marless(*argv)
    assert (code, out) == (2, "")
    assert (err.startswith("marless: ") and err.count("\n") == 1) or "Usage: marless" in err


def test_a_state_that_is_misspelt_is_guessed(coordinator, marless):
    assert "did you mean 'RUNNING'?" in marless("list", "--state", "runing")[2]


def test_what_the_coordinator_refuses_names_the_file(coordinator, marless, job_file):
    coordinator.refuse(SpecError("spec: env: no such option\nalgorithm.minibatches: too many"))
    code, out, err = marless("submit", job_file)
    assert (code, out) == (2, "")
    assert err == f"marless: {job_file}: env: no such option\n{job_file}: algorithm.minibatches: too many\n"
    coordinator.refuse(OverloadedError("16 jobs wait; try again later", retry_after_s=60))
    assert marless("submit", job_file) == (1, "", "marless: 16 jobs wait; try again later\n")


# As a process.


def start(*argv: str, **kwargs) -> subprocess.Popen:
    command = [sys.executable, "-c", "from marless.app.cli import command; command()", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


@pytest.mark.parametrize("argv", [("watch", "one", "-o", "jsonl"), ("logs", "one", "-f"), ("wait", "one")])
def test_ctrl_c_detaches_and_says_how_to_cancel(coordinator, argv):
    coordinator.add("one", log=list(LOG[:1]))
    coordinator.happen("one", rounds=1)
    process = start(*argv)
    if argv[0] == "wait":
        while not coordinator.asked(pb.WatchJobRequest):
            assert process.poll() is None
            time.sleep(0.01)
    else:
        assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    said = "marless: detached; the job continues: `marless watch one` shows it, `marless cancel one` ends it\n"
    assert err.endswith(said)  # after lines of progress, if the start took long
    assert not coordinator.asked(pb.CancelJobRequest)


def test_a_restart_of_the_coordinator_goes_unseen(coordinator):
    coordinator.add("one")
    coordinator.happen("one", rounds=1)
    process = start("watch", "one", "-o", "jsonl")
    for _ in range(2):
        assert process.stdout.readline()
        coordinator.kill()
        coordinator.start()
        coordinator.happen("one", rounds=1)
    assert process.stdout.readline()
    coordinator.happen("one", state="SUCCEEDED")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert [line.split(" · ")[0] for line in err.splitlines()] == ["round 2"]


def test_a_reader_that_leaves_is_no_mistake(coordinator):
    coordinator.add("one", log=[LOG[0]] * 20_000)
    process = start("logs", "one")
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=20)


def completing(words: str) -> dict[str, str]:
    """What a shell sets for the program that it asks how to go on."""
    return {"_MARLESS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


def completed(words: str) -> list[str]:
    out, err = start(env=os.environ | completing(words)).communicate(timeout=20)
    assert err == ""
    return out.split()


@pytest.mark.parametrize(("running", "expected"), [(True, ["job-a", "job-b", "job-c"]), (False, ["job-c"])])
def test_the_shell_completes_ids(coordinator, tmp_path, running, expected):
    for job in ("job-a", "other", "job-b"):
        coordinator.add(job)
    (tmp_path / "runs/job-c").mkdir(parents=True)
    (tmp_path / "runs/job-c/job.json").touch()
    if not running:
        coordinator.kill()
    assert completed("marless get job") == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("marless list --state can", ["cancelled"]),
        ("marless list --sort ret", ["return"]),
        ("marless compare job.yaml --presets vanilla,marless-m", ["vanilla,marless-minus"]),
        ("marless wait job-a jo", ["job-a"]),
        ("marless evaluate jo", ["job-a"]),
        ("marless plot jo", ["job-a"]),
        ("marless train --resume jo", ["job-a"]),
        ("marless export jo", ["job-a"]),
    ],
)
def test_the_shell_completes_states_presets_and_ids_everywhere(marless, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/job-a").mkdir(parents=True)
    (tmp_path / "runs/job-a/job.json").touch()
    for name, value in completing(words).items():
        monkeypatch.setenv(name, value)
    _, out, err = marless()
    assert (out.split(), err) == (expected, "")


def test_colour_is_for_terminals_that_want_it(coordinator):
    coordinator.add("one")
    process = start("get", "one", env=os.environ | {"NO_COLOR": "1"})
    out, _ = process.communicate(timeout=20)
    assert "\x1b" not in out
