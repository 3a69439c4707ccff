import csv
from pathlib import Path

from marless.jobs.sinks.contract import check_sink

from my_sink.sink import MySink, MySinkConfig


def read(folder: Path) -> list[tuple[str, int, float]]:
    with (folder / "curves.csv").open(newline="") as file:
        return [(name, int(step), float(value)) for name, step, value in csv.reader(file)]


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    check_sink(lambda: MySink(MySinkConfig()), tmp_path, read)
