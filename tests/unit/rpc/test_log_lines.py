"""Lines of a log that cannot be written are lost and counted; the calls that log them do not raise."""

import json
import os

from marless.core.log import Lines


def test_lines_are_lost_on_a_full_disk_and_counted_once_there_is_room(tmp_path):
    with open("/dev/full", "w", encoding="utf-8") as stream:  # noqa: PTH123  # a device
        lines = Lines(stream)
        for number in range(3):
            print(f"lost {number}", file=lines, flush=True)  # as loggers do
        kept = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
        os.dup2(kept, stream.fileno())
        os.close(kept)
        print("kept φ", file=lines, flush=True)
        print("and", "this", file=lines, flush=True)
    count, *rest = (tmp_path / "log").read_text("utf-8").splitlines()
    assert json.loads(count) == {"event": "log.lines_lost", "lines": 3}
    assert rest == ["kept φ", "and this"]


def test_a_closed_stream_loses_its_lines(tmp_path):
    stream = (tmp_path / "log").open("w")
    lines = Lines(stream)
    stream.close()
    print("lost", file=lines, flush=True)
    assert (tmp_path / "log").read_text() == ""


def test_a_line_of_which_a_part_was_written_ends_before_the_next_one(tmp_path, monkeypatch):
    with (tmp_path / "log").open("w") as stream:
        lines, write = Lines(stream), os.write
        monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
        print("torn apart", file=lines)
        monkeypatch.setattr(os, "write", write)
        print("whole", file=lines)
    first, count, last = (tmp_path / "log").read_text().splitlines()
    assert (first, json.loads(count)["lines"], last) == ("tor", 1, "whole")
