"""`marless cost` and dry runs: three figures from records alone, in every format, and a sentence for every mistake."""

import json
import subprocess
from dataclasses import replace

import pytest
import yaml

from marless.core.machine import MachineRecord
from marless.cost.billing.bill import bill
from marless.cost.estimates.calibration import Calibration, FunctionSeconds
from marless.jobs import prices
from marless.rpc.v1 import coordinator_pb2 as pb
from tests.scripted_coordinator import ScriptedCoordinator
from tests.unit.cost.billing.rounds import job, paper_round

SPEC = job(
    name="six", env={"name": "mpe/simple_spread", "options": {"agents": 6}}, stop={"rounds": 4}, actors={"count": 50}
)
RECORDS = [paper_round(i) for i in range(4)]
BILL = bill(RECORDS, SPEC, prices.load())
STATUS = json.dumps({"job": "six", "state": "RUNNING", "random": None})


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "runs" / "six"
    path.mkdir(parents=True)
    (path / "spec.yaml").write_text(SPEC.to_yaml())
    (path / "job.json").write_text(STATUS)
    (path / "rounds.jsonl").write_text("".join(record.to_json() + "\n" for record in RECORDS))
    return path


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(SPEC.to_yaml())
    return path


def table(out: str) -> dict[str, list[str]]:
    """Rows of three figures, by name."""
    return {" ".join(words[:-3]): words[-3:] for words in map(str.split, out.splitlines())}


def test_a_running_job_by_kind_for_people(marless, folder):
    code, out, err = marless("cost", "six")
    assert code == 0
    header, *_, total = out.splitlines()
    assert header.split("  ")[0] == "kind"
    assert "serverful USD (modelled)" in header
    assert total.split() == ["total", *(f"{BILL.total_usd(a):,.6f}" for a in ("paper", "billed", "serverful"))]
    assert [line.partition("  ")[0] for line in out.splitlines()[1:-1]] == [
        "actor", "critic", "policy", "actor: request", "critic: request", "policy: request", "actor: ready",
        "redis: node", "learner",
    ]  # fmt: skip
    assert err.splitlines() == [
        "marless: job six, running, 4 rounds so far; its cost counts as billed",
        "marless: billed by lambda, list prices of us-east-1 as of 2026-06-30; serverful: modelled, on c6a.16xlarge",
    ]


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({}, False),  # a workstation, of which nobody was told anything
        ({"type": "lab-server"}, True),
        ({"usd_h": 0.0}, True),
        ({"launcher": "external"}, True),  # workers that dialled in, perhaps from many machines
    ],
)
def test_machines_are_told_where_some_may_be_rented(marless, folder, facts, shown):
    machine = MachineRecord(
        **{"id": "m", "began_s": 1e9, "launcher": "local", "present_s": 60.0, "work_s": 60.0} | facts
    )
    lines = [replace(record, machines=(machine,)).to_json() + "\n" for record in RECORDS]
    (folder / "rounds.jsonl").write_text("".join(lines))
    _, out, err = marless("cost", "six")
    assert ("machines USD" in out, "marless: machines:" in err) == (shown, shown)
    _, out, err = marless("cost", "six", "--accounting", "machines")  # who asks gets them in any case
    assert ("machines USD" in out, "marless: machines:" in err) == (True, True)


def test_a_job_of_a_coordinator(marless, tmp_path, monkeypatch):
    with ScriptedCoordinator(tmp_path) as running:
        monkeypatch.setenv("MARLESS_COORDINATOR", running.address)
        lines = [record.to_json() + "\n" for record in RECORDS]
        files = {"spec.yaml": SPEC.to_yaml(), "job.json": STATUS, "rounds.jsonl": "".join(lines) + lines[0][:50]}
        running.add("six", files={name: text.encode() for name, text in files.items()})
        code, out, _ = marless("cost", "six", "-o", "json")
    assert (code, json.loads(out)["usd"]["billed"]) == (0, BILL.total_usd("billed"))


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_everything_for_programs(marless, folder, output, read):
    code, out, err = marless("cost", folder, "-o", output)
    found = read(out)
    assert (code, err) == (0, "")
    assert (found["job"], found["state"], found["rounds"], found["counts_as_cost"]) == ("six", "RUNNING", 4, "billed")
    assert found["usd"] == {a: BILL.total_usd(a) for a in ("paper", "billed", "serverful")}
    assert (found["modelled"], found["serverful_machine"]) == (["serverful"], "c6a.16xlarge")
    for what in ("by_kind", "by_round", "by_group"):
        for accounting, parts in found[what].items():
            assert sum(parts.values()) == pytest.approx(found["usd"][accounting], abs=1e-9)
    assert list(found["by_group"]["paper"]) == ["(shared)", *(f"agent_{i}" for i in range(6))]


def test_by_round_people_count_from_one_and_programs_from_zero(marless, folder):
    _, out, _ = marless("cost", "six", "--by", "round", "--accounting", "paper")
    assert [line.split()[0] for line in out.splitlines()] == ["round", "1", "2", "3", "4", "total"]
    assert len(out.splitlines()[1].split()) == 2
    _, out, _ = marless("cost", "six", "--by", "round", "-o", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert rows[2] == {"round": 2, **{a: BILL.rounds[2].usd(a) for a in ("paper", "billed", "serverful")}}


def test_other_prices(marless, folder, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("lambda: {rates: {x86: {on_demand: 0.0000333334}}}\n")
    _, out, _ = marless("cost", "six", "--prices", mine, "-o", "json")
    assert json.loads(out)["usd"]["paper"] == pytest.approx(2 * BILL.total_usd("paper"))


def test_a_job_without_rounds_costs_nothing(marless, folder):
    (folder / "rounds.jsonl").unlink()
    code, out, err = marless("cost", "six")
    assert (code, out.splitlines()[-1].split()) == (0, ["total", "0.000000", "0.000000", "0.000000"])
    assert "on no machine: there is no round yet" in err


@pytest.mark.parametrize(
    ("argv", "code", "sentence"),
    [
        (("cost", "nine"), 102, "nine: there is no such run folder here"),
        (("cost", "six", "--accounting", "papr"), 2, "--accounting: unknown accounting 'papr'; did you mean 'paper'?"),
        (("cost", "six", "--prices", "gone.yaml"), 2, "gone.yaml: cannot be read (No such file or directory)"),
        (("cost", "six", "--prices", "bare.yaml"), 2, "no price for any instance type x9.*; add `ec2: "),
        (("submit", "job.yaml", "--from", "six"), 2, "--from needs --dry-run"),
        (("train", "--resume", "six", "--dry-run"), 2, "--dry-run estimates a new job"),
        (("submit", "job.yaml", "--dry-run", "--from", "nine"), 102, "nine: there is no such run folder here"),
        (("submit", "job.yaml", "--dry-run", "--set", "actors.count=9", "--from", "six"), 2, "actors differ from this"),
        (("submit", "job.yaml", "--dry-run", "--set", "algorithm.minibatches=90000000"), 2, "job.yaml: algorithm."),
        (("submit", "job.yaml", "--dry-run", "--set", "env.options.agents=0"), 2, "job.yaml: env: "),
        (("submit", "job.yaml", "--dry-run", "--set", "bill.prices=gone.yaml"), 2, "gone.yaml: cannot be read"),
        (("submit", "job.yaml", "--dry-run", "--set", "functions.learner.vcpus=6"), 2, "10614 MB of a Lambda"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_sentence(marless, folder, job_file, tmp_path, argv, code, sentence):
    (tmp_path / "bare.yaml").write_text("ec2: {serverful: x9}\n")
    got, out, err = marless(*argv)
    assert (got, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_dry_run_goes_by_the_newest_run_that_is_alike(marless, folder, job_file):
    for verb in ("submit", "train"):
        code, out, err = marless(verb, job_file, "--dry-run")
        assert code == 0
        assert "from the 4 recorded rounds of six, billed again" in err
        assert "ends by stop.rounds; its cost counts as billed; nothing was submitted or started" in err
        assert table(out)["rounds"] == ["4", "4", "4"]
        assert table(out)["billed USD"][1] == f"{BILL.total_usd('billed'):,.6f}"


def test_a_dry_run_for_programs(marless, folder, job_file):
    code, out, err = marless("submit", job_file, "--dry-run", "--from", "six", "--set", "stop.rounds=400", "-o", "json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["from"], found["ends_by"], found["modelled"]) == ("six", "stop.rounds", ["serverful"])
    assert found["rounds"] == {"low": 400, "likely": 400, "high": 400}
    assert found["usd"]["paper"]["likely"] == pytest.approx(100 * BILL.total_usd("paper"))


def test_a_dry_run_sends_nothing(marless, job_file, folder, tmp_path, monkeypatch):
    with ScriptedCoordinator(tmp_path) as running:
        monkeypatch.setenv("MARLESS_COORDINATOR", running.address)
        assert marless("submit", job_file, "--dry-run")[0] == 0
        assert running.asked(pb.SubmitJobRequest) == []


@pytest.fixture
def calibrated(monkeypatch):
    """A calibration that takes no time; remembers how it was asked for."""
    asked = []
    work = [FunctionSeconds(function="policy", name=f"agent_{i}", index=0, seconds=0.5) for i in range(6)]
    answer = Calibration(actor_s=(0.3, 0.2), updates=(tuple(work),), samples_share=0.1).to_json()

    def run(command, **options):
        asked.append((command, options))
        return subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_a_dry_run_without_a_run_that_is_alike_measures(marless, job_file, calibrated):
    code, out, err = marless("submit", job_file, "--dry-run", "-o", "json")
    found = json.loads(out)
    [(command, options)] = calibrated
    assert (command[1:], options["env"]["OPENBLAS_NUM_THREADS"]) == (
        ["-P", "-m", "marless.cost.estimates.calibration"],
        "1",
    )
    assert (code, found["from"], found["modelled"]) == (0, "calibration", ["seconds", "serverful"])
    for each in (found["seconds"], *found["usd"].values()):
        assert each["low"] < each["likely"] < each["high"]
    assert "measuring one actor and two updates" in err
    assert "an actor takes 0.200 s, an update 3.000 s of one vCPU" in found["assumed"][0]
    assert "10.0% of a round's samples" in found["assumed"][2]


def test_where_policies_decide_the_range_is_wider(marless, job_file, calibrated):
    deciding = ("--set", "scaling.name=marless")
    fixed = json.loads(marless("submit", job_file, "--dry-run", "-o", "json")[1])
    free = json.loads(marless("submit", job_file, "--dry-run", *deciding, "-o", "json")[1])
    assert free["usd"]["paper"]["low"] < fixed["usd"]["paper"]["low"]
    assert free["usd"]["paper"]["likely"] == fixed["usd"]["paper"]["likely"]
    assert "as few as the policies may choose" in free["assumed"][-1]


def test_a_list_of_actors_is_estimated_by_its_mean(marless, job_file, calibrated):
    """Of 2, 1, and then 3 to the end of four rounds: 2.25, rounded to 2."""
    usual = ["submit", job_file, "--dry-run", "-o", "json", "--set", "stop.rounds=4"]
    lists = ("[2, 1, 3]", "[2]", "[3]")
    found, two, three = (
        json.loads(marless(*usual, "--set", f"scaling={{name: given, actors: {each}}}")[1]) for each in lists
    )
    assert found["usd"]["paper"] == two["usd"]["paper"]
    assert found["usd"]["paper"]["likely"] < three["usd"]["paper"]["likely"]
    assert found["assumed"][-1] == "assumed: each round has as many actors as a round of the list has on average"


def test_a_calibration_that_fails_is_one_sentence(marless, job_file, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: out of luck\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    code, out, err = marless("submit", job_file, "--dry-run")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "marless: the calibration failed: RuntimeError: out of luck"


def test_rounds_cannot_stand_for_an_asynchronous_job(marless, job_file, calibrated):
    asynchronous = ("--set", "schedule.name=stellaris", "--set", "actors.episodes=fresh")
    code, out, err = marless("submit", job_file, "--dry-run", *asynchronous)
    assert (code, out) == (2, "")
    assert "rounds cannot stand for schedule stellaris; train shortly" in err
    assert calibrated == []


def test_what_a_run_would_cost_on_spot_machines(marless, folder, tmp_path):
    (tmp_path / "series.csv").write_text("time,usd_h,killed\n0,1.224,0\n10,1.224,1\n60,1.224,0\n")
    code, out, err = marless("cost", "six", "--spot", "series.csv")
    assert code == 0
    rows = {line.partition("  ")[0]: line.split()[-3:] for line in out.splitlines()[1:]}
    # begun before the kill at 10 s, as 167 of 1,000 are, it pays the first minute of two machines
    minute = 60 * 1.224 / 3600
    assert rows["spot USD"] == [f"{each:,.6f}" for each in (minute, 1.167 * minute, 2 * minute)]
    assert rows["kills"] == ["0.00", "0.17", "1.00"]
    # begun at 0.24 s, one round of 4.9 s is done by then, and three from 60 s on
    assert rows["seconds"][::2] == ["19.6", "74.5"]
    assert "modelled: the run on c6a.16xlarge, begun at 1,000 moments of series.csv" in " ".join(err.split())
    found = json.loads(marless("cost", "six", "--spot", "series.csv", "-o", "json")[1])
    assert (found["lost_s"]["most"], found["machine"]) == (pytest.approx(4.86), "c6a.16xlarge")


def test_a_bid_decides_when_a_spot_machine_is_lost(marless, folder, tmp_path):
    prices = [("2026-10-01T00:01:00Z", "1.224"), ("2026-10-01T00:00:10Z", "5"), ("2026-10-01T00:00:00Z", "1.224")]
    machine = {"InstanceType": "c6a.16xlarge", "AvailabilityZone": "us-east-1a", "ProductDescription": "Linux/UNIX"}
    history = [{"Timestamp": time, "SpotPrice": price, **machine} for time, price in prices]
    (tmp_path / "history.json").write_text(json.dumps({"SpotPriceHistory": history}))
    lost = json.loads(marless("cost", "six", "--spot", "history.json", "--bid", "2", "-o", "json")[1])
    assert (lost["lost_s"]["most"], lost["kills"]["most"]) == (pytest.approx(4.86), 1)
    dear = json.loads(marless("cost", "six", "--spot", "history.json", "-o", "json")[1])
    assert dear["kills"]["most"] == 0
    machine["InstanceType"] = "m4.4xlarge"
    history = [{"Timestamp": time, "SpotPrice": price, **machine} for time, price in prices]
    (tmp_path / "history.json").write_text(json.dumps({"SpotPriceHistory": history}))
    code, _, err = marless("cost", "six", "--spot", "history.json")
    said = "--spot: these are prices of m4.4xlarge, and the run needs c6a.16xlarge; give those of c6a.16xlarge"
    assert (code, said in " ".join(err.split())) == (2, True)


def test_what_a_run_would_cost_with_slots_of_ones_own(marless, folder):
    code, out, err = marless("cost", "six", "--own", "50")
    assert code == 0
    rows = {line.partition("  ")[0]: line.split()[-2:] for line in out.splitlines()[1:]}
    assert rows["actor: own"] == ["230.00", "free"]
    assert "100% of the work runs on 50 vCPUs of your own" in " ".join(err.split())
    found = json.loads(marless("cost", "six", "--own", "0", "-o", "json")[1])
    assert found["usd"] == found["usd_without"] == pytest.approx(BILL.total_usd("billed"))


def test_from_which_idle_share_functions_pay(marless, folder):
    code, out, err = marless("cost", "six", "--idle")
    assert code == 0
    small = next(line.split() for line in out.splitlines() if line.startswith("c6a.large"))
    machine_usd = 205 * (0.0765 + 0.032 + 0.0168) / 3600  # with a Redis node and the services' host
    functions_usd = json.loads(marless("cost", "six", "--idle", "-o", "json")[1])["functions_usd"]
    assert small[1:3] == ["205.0", f"{machine_usd:,.6f}"]
    assert small[-2:] == [f"{1 - machine_usd / functions_usd:.1%}", "idle"]
    assert f"on functions, the run costs {functions_usd:,.6f} USD" in " ".join(err.split())
    found = json.loads(marless("cost", "six", "--idle", "-o", "json")[1])
    assert found["machines"][0]["usd_by_busy"]["0.1"] == pytest.approx(10 * machine_usd)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--idle", "--own", "2"), "--spot, --own and --idle show a table each: give one of them"),
        (("--spot", "none.csv"), "none.csv: cannot be read (No such file or directory); give a file of spot prices"),
        (("--own", "-1"), "-1 is less than 0"),
        (("--bid", "0.5"), "--bid is for prices of spot machines: give them with --spot FILE"),
    ],
)
def test_mistakes_about_elsewhere_get_a_sentence(marless, folder, words, said):
    code, _, err = marless("cost", "six", *words)
    assert code == 2
    assert said in " ".join(err.split())


def test_the_seconds_that_count_can_be_chosen(marless, folder):
    """Half of each function's time was waiting; what is charged by the time of a round stays."""
    slow = [
        replace(
            record,
            invocations=tuple(
                replace(each, vcpu_s=each.vcpu_s / 2 if each.function in ("actor", "learner") else each.vcpu_s)
                for each in record.invocations
            ),
        )
        for record in RECORDS
    ]
    (folder / "rounds.jsonl").write_text("".join(record.to_json() + "\n" for record in slow))
    found = {}
    for time in ("duration", "cpu"):
        code, out, _ = marless("cost", "six", "--time", time, "-o", "json")
        found[time] = json.loads(out)
        assert (code, found[time]["time"]) == (0, time)
    actors = {time: each["by_kind"]["paper"]["actor"] for time, each in found.items()}
    assert actors["cpu"] == pytest.approx(actors["duration"] / 2, rel=1e-3)
    ready = {time: each["by_kind"]["billed"]["actor: ready"] for time, each in found.items()}
    assert ready["cpu"] == ready["duration"]
    _, _, err = marless("cost", "six", "--time", "cpu")
    assert "functions by CPU time" in err
    code, _, err = marless("cost", "six", "--time", "wall")
    assert code == 2 and "--time" in err


def test_a_dry_run_says_which_numbers_of_actors_are_in_time(marless, folder, job_file):
    """A recorded round takes 1.15 s of acting and an update of 3.75 s, 0.075 s an actor: four rounds of n actors take
    4.6 + 0.3 n s, and of 20 s 19 are not kept.
    """
    due = SPEC.model_copy(update={"scaling": SPEC.scaling.model_copy(update={"deadline_s": 20.0})})
    (folder / "spec.yaml").write_text(due.to_yaml())
    job_file.write_text(due.to_yaml())
    code, out, err = marless("submit", job_file, "--dry-run", "--from", "six", "-o", "json")
    assert code == 0
    said = "deadline of 20 s: 1 to 48 of 50 actors are in time: 4.9 s with 1 in each round, 19.0 s with 48"
    assert said in json.loads(out)["assumed"]
    code, out, err = marless("submit", job_file, "--dry-run", "--from", "six")
    assert said in " ".join(err.split())
