"""The contract of sinks: ours keep it (see tests/unit/jobs/sinks), and it sees every promise that is broken."""

import json
import threading

import pytest

from marless.jobs.sinks.contract import check_sink


class Lines:
    """A sink that keeps the contract in the plainest way: a file a round."""

    def open(self, job):
        self.folder = job.folder
        for path in self.folder.glob("*.json"):
            if job.last is None or int(path.stem) > job.last.env_steps:
                path.unlink()

    def write(self, record, scalars):
        (self.folder / f"{record.env_steps}.json").write_text(json.dumps(scalars))

    def close(self, state):
        pass


def read(folder):
    rounds = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
    return [(name, step, value) for step, scalars in rounds.items() for name, value in scalars.items()]


class ForgetsWhatWasThere(Lines):
    def open(self, job):
        self.folder = job.folder
        for path in self.folder.glob("*.json"):
            path.unlink()


class LosesOne(Lines):
    def write(self, record, scalars):
        super().write(record, {name: value for name, value in scalars.items() if name != "policies/all/kl"})


class Rounds(Lines):
    def write(self, record, scalars):
        super().write(record, {name: round(value) for name, value in scalars.items()})


class Talks(Lines):
    def close(self, state):
        print("done")  # noqa: T201


class ChangesWhatItIsGiven(Lines):
    def write(self, record, scalars):
        scalars.pop("round/number")


class LeavesThreads(Lines):
    def __init__(self):
        self.release = threading.Event()

    def open(self, job):
        super().open(job)
        threading.Thread(target=self.release.wait, name="left").start()


def test_a_plain_sink_keeps_it(tmp_path):
    check_sink(Lines, tmp_path, read)


@pytest.mark.parametrize(
    ("sink", "broken"),
    [
        (LosesOne, "policies/all/kl at env step 100 is missing"),
        (ForgetsWhatWasThere, "at env step 100 is missing"),
        (Rounds, "was recorded as"),
        (Talks, "printed to standard output"),
        (ChangesWhatItIsGiven, "changed the scalars"),
    ],
)
def test_it_sees_a_broken_promise(tmp_path, sink, broken):
    with pytest.raises(AssertionError, match=broken):
        check_sink(sink, tmp_path, read)


def test_it_sees_threads_that_keep_the_process(tmp_path):
    sinks = []
    try:
        with pytest.raises(AssertionError, match="left threads that keep the process from ending"):
            check_sink(lambda: sinks.append(LeavesThreads()) or sinks[-1], tmp_path)
    finally:
        for sink in sinks:
            sink.release.set()


def test_it_sees_points_that_were_taken_back(tmp_path):
    with pytest.raises(AssertionError, match="is shown 2 times"):
        check_sink(Lines, tmp_path, lambda folder: read(folder) * 2)
    with pytest.raises(AssertionError, match="was never recorded, or was taken back"):
        check_sink(Lines, tmp_path, lambda folder: [*read(folder), ("round/number", 900, 8.0)])
