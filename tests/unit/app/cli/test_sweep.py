"""Sweeps: which jobs they are, what is refused, and that a repeated one goes on."""

import json
import re
import threading

import pytest
import yaml

from marless.app.cli import sweep
from marless.app.client import Client
from marless.core.errors import SpecError
from marless.rpc.v1 import coordinator_pb2 as pb
from tests.unit.app.cli.conftest import JOB

RATES = ("--sweep", "algorithm.lr=1e-3,2e-3")


def planned(*sweeps: str, seeds: int | None = None, prefix: str = "", overrides=()) -> dict[str, dict]:
    axes = sweep.axes(sweeps)
    found = sweep.runs(JOB, "job.yaml", prefix=prefix, overrides=overrides, sweep=axes, seeds=seeds)
    return {run.id: json.loads(run.spec.to_json()) for run in found}


def test_seeds_count_up_from_the_jobs_own():
    assert {run: spec["seed"] for run, spec in planned(seeds=3).items()} == {
        "tiny-seed5": 5, "tiny-seed6": 6, "tiny-seed7": 7,
    }  # fmt: skip


def test_several_fields_are_combined_and_ids_say_their_values():
    found = planned("algorithm.lr=1e-3,0.002", "actors.count=2,4", prefix="mine")
    assert {run: (spec["algorithm"]["lr"], spec["actors"]["count"]) for run, spec in found.items()} == {
        "mine-lr1e-3-count2": (0.001, 2),
        "mine-lr1e-3-count4": (0.001, 4),
        "mine-lr0-002-count2": (0.002, 2),
        "mine-lr0-002-count4": (0.002, 4),
    }


def test_a_value_may_be_a_list_or_a_name():
    assert [spec["model"]["hidden"] for spec in planned("model.hidden=[64,64],[128]").values()] == [[64, 64], [128]]
    assert [spec["algorithm"]["name"] for spec in planned("algorithm=ippo,mappo").values()] == ["ippo", "mappo"]


def test_algorithms_keep_what_they_share_and_have_their_own_defaults():
    own = ("algorithm={name: ippo, lr: 3e-3, clip: 0.2}",)  # clip, which VDN does not have, is IPPO's default
    found = planned("algorithm.name=ippo,vdn", overrides=own, seeds=1)
    assert {run: spec["algorithm"]["lr"] for run, spec in found.items()} == {
        "tiny-ippo-seed5": 0.003, "tiny-vdn-seed5": 0.003,
    }  # fmt: skip
    assert found["tiny-ippo-seed5"]["algorithm"]["clip"] == 0.2
    assert "clip" not in found["tiny-vdn-seed5"]["algorithm"]


def test_what_was_chosen_for_another_algorithm_is_not_dropped():
    own = ("algorithm={name: ippo, clip: 0.3}",)
    with pytest.raises(
        SpecError, match=r"job.yaml: algorithm.name=vdn has no setting clip, which the job sets for ippo; "
    ) as caught:
        planned("algorithm.name=mappo,vdn", overrides=own)
    assert str(caught.value).count("\n") == 0
    with pytest.raises(SpecError, match=r"algorithm.clip: unknown field"):
        planned("algorithm.name=ippo,vdn", "algorithm.clip=0.1,0.2")


def test_ids_tell_all_jobs_apart_whatever_the_values_are_called():
    found = planned("actors.count=1,2", "functions.actor.vcpus=1.5,2")
    assert next(iter(found)) == "tiny-count1-vcpus1-5"
    alike = planned("env.options.x=a b,a-b,-1,1")
    assert len(alike) == 4 and {"tiny-x1", "tiny-xminus1"} < set(alike)
    assert list(planned("actors.count=1", "env.options.count=2")) == ["tiny-actors-count1-env-options-count2"]
    long = planned("env.options.x=" + ",".join(f"{'very-long-text-' * 9}{n}" for n in range(3)), prefix="p" * 95)
    assert len(long) == 3 and all(len(run) <= 100 for run in long)


def test_more_values_leave_the_ids_of_the_others_as_they_were():
    assert set(planned("algorithm.lr=1e-3,2e-3", seeds=2)) < set(planned("algorithm.lr=2e-3,5e-3,1e-3", seeds=3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sweep", "algorithm.rate=1,2"), "algorithm.rate: unknown field 'rate'; .*known: .*lr"),
        (("--sweep", "algorithm.lr=1e-3,-2"), "algorithm.lr: got -2; allowed: "),
        (("--sweep", "algorithm.lr"), "write it as section.field=value,value"),
        (("--sweep", "algorithm.lr=1e-3,"), "a value is empty"),
        (("--sweep", "actors.count=2,2"), "2 is given twice; leave one out"),
        (("--sweep", "algorithm.lr=1e-3,2e-3,0.001"), r"1e-3 \(also written 0.001\) is given twice; leave one out"),
        (("--sweep", "model.hidden=[16],[16.0]"), r"\[16\] \(also written \[16.0\]\) is given twice"),
        (("--sweep", "env.options={a: 1, b: 2},{b: 2, a: 1.0}"), r"{a: 1, b: 2} \(also written .*\) is given twice"),
        (("--sweep", "algorithm.entropy=-0.0,0.0"), r"-0.0 \(also written 0.0\) is given twice"),
        (("--sweep", "model.hidden=[64, 64],[64,64]"), r"\[64, 64\] \(also written \[64,64\]\) is given twice"),
        (("--sweep", "algorithm.lr=[1"), "not a YAML value"),
        ((*RATES, *RATES), "algorithm.lr is swept twice"),
        ((*RATES, "--set", "algorithm.lr=1e-4"), "--sweep and --set both give algorithm.lr"),
        (("--sweep", "seed=1,2", "--seeds", "2"), "both give seeds"),
        (("--sweep", "name=a,b"), "sweep another field"),
        (("--seeds", "21"), "would start 21 jobs, and --yes allows 20; --yes 21 starts them all"),
        ((*RATES, "--seeds", "3", "--yes", "5"),
         "6 jobs, 3 seeds of each, and --yes allows 5; lr=1e-3; lr=2e-3; --yes 6"),
        (("--sweep", f"seed={','.join(map(str, range(100)))}", "--sweep", "actors.count=1,2"),
         "200 jobs, and --yes allows 20; seed=0 count=1; .*and 160 more"),
        (("--seeds", "0"), "less than 1"),
        (("--seeds", "2", "--dry-run", "--from", "six"), "--from estimates one job"),
        (("--dry-run", "--sweep", "env.options.agents=3,0"), "tiny-agents0: env: "),
        (("--seeds", "2", "--job", "Not An Id"), "use lower-case letters"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_submitted(coordinator, marless, job_file, arguments, message):
    code, out, err = marless("submit", job_file, *arguments)
    assert (code, out) == (2, "")
    assert re.search(message, " ".join(err.replace("│", " ").split())), err
    assert not coordinator.servicer.asked


def test_all_settings_mistakes_are_told_once(marless, coordinator, job_file):
    _, _, err = marless("submit", job_file, *RATES, "--sweep", "actors.cuont=1,2", "--seeds", "2")
    assert err.count("\n") == 1 and "did you mean 'count'" in err


def test_a_sweep_prints_its_ids_and_how_to_go_on(coordinator, marless, job_file):
    code, out, err = marless("submit", job_file, *RATES, "--seeds", "2")
    assert (code, out.split()) == (0, ["tiny-lr1e-3-seed5", "tiny-lr1e-3-seed6", "tiny-lr2e-3-seed5",
                                       "tiny-lr2e-3-seed6"])  # fmt: skip
    assert err.startswith("marless: 4 jobs submitted; the same command with --wait")


def test_a_dry_run_shows_the_jobs_of_a_sweep_and_submits_none(coordinator, marless, job_file):
    code, out, err = marless("submit", job_file, *RATES, "--seeds", "2", "--dry-run")
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [
            ["job", "setting", "seed"],
            *([f"tiny-lr{rate}-seed{seed}", f"lr={rate}", f"{seed}"] for rate in ("1e-3", "2e-3") for seed in (5, 6)),
        ],
    )
    assert err.startswith("marless: nothing was submitted; ")
    assert not coordinator.servicer.asked
    first = {"job": "tiny-seed5", "setting": "", "seed": 5}
    assert json.loads(marless("submit", job_file, "--seeds", "1", "--dry-run", "-o", "json")[1]) == {"jobs": [first]}
    assert marless("submit", job_file, "--seeds", "1", "--dry-run", "-o", "name")[1] == "tiny-seed5\n"


def test_a_killed_sweep_goes_on_when_it_is_repeated(coordinator, marless, job_file):
    marless("submit", job_file, "--seeds", "2")  # as far as it came
    coordinator.happen("tiny-seed5", state="SUCCEEDED")
    coordinator.happen("tiny-seed6", state="CANCELLED")
    _, out, err = marless("submit", job_file, "--seeds", "3")
    assert out.split() == ["tiny-seed5", "tiny-seed6", "tiny-seed7"]
    assert err.startswith("marless: 1 job submitted, 2 were there already, 1 of them resumed")
    assert {job: each.job.resumes for job, each in coordinator.servicer.jobs.items()} == {
        "tiny-seed5": 0, "tiny-seed6": 1, "tiny-seed7": 0,
    }  # fmt: skip


@pytest.mark.parametrize("submitted", [0, 2])
def test_ctrl_c_during_the_submission_names_only_the_jobs_submitted_so_far(
    coordinator, marless, job_file, monkeypatch, submitted
):
    method, send = ("submit", Client.submit) if submitted else ("get", Client.get)
    sent = []

    def interrupted(client, *arguments, **options):
        if len(sent) == submitted:
            raise KeyboardInterrupt
        sent.append(send(client, *arguments, **options))
        return sent[-1]

    monkeypatch.setattr(Client, method, interrupted)
    code, out, err = marless("submit", job_file, "--seeds", "9", "--wait")
    jobs = "the jobs submitted so far continue: `marless cancel tiny-seed5 tiny-seed6 tiny-seed7` ends them"
    told = jobs if submitted else "no job was submitted"
    assert (code, out, err) == (130, "", f"marless: interrupted; {told}; the same command submits the rest\n")


def test_two_shells_with_the_same_sweep_have_the_same_jobs(coordinator, marless, job_file):
    coordinator.add("tiny-seed6")  # which the other one has submitted since we looked

    async def unknown(request, context):
        from marless.core.errors import NotFoundError

        raise NotFoundError(f"there is no job {request.job!r}")

    marless("submit", job_file, "--seeds", "1")
    coordinator.servicer.jobs["tiny-seed6"].spec_json = json.dumps(
        json.loads(coordinator.servicer.jobs["tiny-seed5"].spec_json) | {"seed": 6}
    )
    coordinator.replace("GetJob", unknown)
    code, out, _ = marless("submit", job_file, "--seeds", "2")
    assert (code, out.split()) == (0, ["tiny-seed5", "tiny-seed6"])
    assert {request.if_exists for request in coordinator.asked(pb.SubmitJobRequest)} == {pb.IF_EXISTS_USE}


def test_a_sweep_over_jobs_of_another_kind_starts_nothing(coordinator, marless, job_file):
    marless("submit", job_file, "--seeds", "2")
    code, out, err = marless("submit", job_file, "--seeds", "4", "--set", "stop.rounds=9")
    assert (code, out) == (1, "")
    assert "'tiny-seed5' exists with another spec" in err and "--job" in err
    assert set(coordinator.servicer.jobs) == {"tiny-seed5", "tiny-seed6"}
    code, _, err = marless("submit", job_file, "--seeds", "3", "--if-exists", "fail")
    assert code == 1 and "tiny-seed5, tiny-seed6" in err
    assert marless("submit", job_file, "--seeds", "4", "--set", "stop.rounds=9", "--if-exists", "replace")[0] == 0


def lived(coordinator, states: list[str]) -> threading.Thread:
    """Ends the jobs of the sweep below as soon as they are there, each with another return."""

    def live() -> None:
        while len(coordinator.servicer.jobs) < len(states):
            pass
        for number, (job, state) in enumerate(zip(list(coordinator.servicer.jobs), states, strict=True)):
            made = coordinator.servicer.jobs[job].job
            made.greedy_return, made.win_rate = -10.0 - number, 0.25
            made.summary_json = json.dumps({"wall_s": 61.0, "cost_usd": 0.001})
            coordinator.happen(job, state=state, reason="out of luck")

    thread = threading.Thread(target=live)
    thread.start()
    return thread


def test_at_the_end_there_is_one_table_with_means_over_seeds(coordinator, marless, job_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    thread = lived(coordinator, ["SUCCEEDED"] * 3 + ["FAILED"])
    code, out, err = marless("submit", job_file, *RATES, "--seeds", "2", "--wait")
    thread.join()
    assert code == 100 and "job tiny-lr2e-3-seed6 failed: out of luck" in err
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["job", "state", "return", "random", "won", "rounds", "time", "USD"]
    assert rows[1] == ["tiny-lr1e-3-seed5", "SUCCEEDED", "-10.00", "25%", "0", "1:01", "0.0010"]
    assert rows[3][:9] == ["mean", "of", "lr=1e-3", "2", "of", "2", "-10.50", "±", "0.50"]
    assert rows[6][:9] == ["mean", "of", "lr=2e-3", "1", "of", "2", "-12.50", "±", "0.50"]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_a_sweep_for_programs(coordinator, marless, job_file, output, read):
    thread = lived(coordinator, ["SUCCEEDED"] * 2)
    code, out, _ = marless("submit", job_file, "--seeds", "2", "--wait", "-o", output)
    thread.join()
    found = read(out)
    assert code == 0 and [job["seed"] for job in found["jobs"]] == [5, 6]
    assert found["settings"] == [
        {"setting": "", "seeds": 2, "succeeded": 2, "return": -10.5, "standard_error": 0.5, "win_rate": 0.25}
    ]
    lines = marless("submit", job_file, "--seeds", "2", "-o", "jsonl")[1].splitlines()
    assert [json.loads(line)["job"] for line in lines] == ["tiny-seed5", "tiny-seed6"]
