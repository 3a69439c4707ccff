"""Transcripts are compared by their structure, and written anew; a terminal shows what rich leaves on it."""

import pytest

from tests.docs import commands, transcripts
from tests.docs.blocks import Block
from tests.docs.terminal import Screen

TABLE = ("job  rounds  return", "one      12  -21.50", "two     120  -19.25")


@pytest.mark.parametrize(
    ("seen", "same"),
    [
        (("job  rounds  return", "one       2  -38.40", "two       2  -37.00"), True),
        (("job rounds return", "one 1,000 7.1e-05", "two 2 3"), True),
        (("job  rounds  random", "one      12  -21.50", "two     120  -19.25"), False),
        (("job  rounds  return", "one      12  -21.50"), False),
        (("job  rounds  return", "one      12", "two     120  -19.25"), False),
        ((*TABLE, "three     1  -20.00"), False),
        ((), False),
    ],
)
def test_numbers_may_differ_and_nothing_else(seen, same):
    assert transcripts.same(TABLE, seen) is same


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        (("...",), True),
        (("job  rounds  return", "..."), True),
        (("...", "two       9  -1.00"), True),
        (("  ...", "one 1 1", "..."), True),
        (("job  rounds  return", "one 1 1", "...", "two 2 2"), True),
        (("one 1 1", "..."), False),
        (("...", "three 1 1", "..."), False),
    ],
)
def test_three_dots_stand_for_any_lines(shown, same):
    assert transcripts.same(shown, TABLE) is same


def test_equal_lines_count_once_and_a_parted_sentence_is_one():
    assert transcripts.same(("round 1 of 9", "...", "round 9 of 9"), [f"round {n} of 9" for n in range(5)])
    assert transcripts.same(("round 1 of 9", "round 2 of 9"), ("round 8 of 120",))
    assert transcripts.same(("marless: it took 9 s", "  and no more"), ("marless: it", "  took 1,000 s and no more"))
    assert not transcripts.same(("marless: it took 9 s", "   x  y"), ("marless: it took 9 s x y",))


def test_a_block_is_written_anew_and_what_was_left_out_stays_so():
    text = "$ one \\\n  more\n1\n...\n3\n$ two\n"
    page = f"before\n```console\n{text}```\nafter"
    block = Block("page", 2, "console", text, "", "")
    assert [each.command for each in transcripts.parse(text)] == ["one \\\n  more", "two"]
    written = transcripts.rewritten(page, block, [["10", "20", "25", "30"], ["all", "of it"]])
    assert written == "before\n```console\n$ one \\\n  more\n10\n...\n30\n$ two\nall\nof it\n```\nafter"


def test_a_screen_shows_what_is_left_and_the_bar_that_went():
    screen = Screen()
    screen.write(
        "first\n\x1b[1mtrain\x1b[0m ━━ return -9\r\x1b[2Ktrain ━━━ return -5\r\x1b[2Ktrain ━━━━ return -1\r\x1b[2K"
    )
    screen.write("a\tb\nover\rno\n\x1b[1A\x1b[2Kend")
    assert screen.text() == "first\ntrain ━━━ return -5\na       b\nend"
    long = Screen()
    long.write("word " * 17)
    assert long.text().splitlines() == [" ".join(["word"] * 16), "  word"]
    path = Screen()
    path.write(f"unix:/tmp/{'a-part/' * 12}socket")
    assert "\n" not in path.text()


@pytest.mark.parametrize(
    "line",
    [
        "marless sumbit job.yaml",
        "marless submit job.yaml --see 3",
        "marless list --sort size",
        "marless watch",
        "marless scheduler tune",
        "make trian",
        "make lock UPDATE=1",
        "python -m bench.update",
        "python -m bench.updates --rounds 3",
        "pytest tests/fault",
        "pip install marless[gpu]",
        "docker compose up",
    ],
)
def test_a_command_that_nobody_could_run_is_found(line):
    [words] = commands.simple(line)
    with pytest.raises(commands.UnknownCommandError):
        commands.check(words, whole=True)


def test_a_line_is_taken_apart():
    [line] = commands.lines("# a comment\nX=1 marless submit a.yaml \\\n  --set b='c d' | xargs -r make e  # another\n")
    assert commands.simple(line) == [["marless", "submit", "a.yaml", "--set", "b=c d"], ["xargs", "-r", "make", "e"]]
    assert commands.simple("job=$(marless submit a.yaml)") == [["marless", "submit", "a.yaml"]]
