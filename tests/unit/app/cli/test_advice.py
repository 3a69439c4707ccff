"""What `marless up` tells of the warnings in the store's log."""

import json
import os

from marless.app.cli.supervision import Log

RISK = "this Redis is not durable: set appendonly yes"


def _line(**fields: object) -> str:
    return json.dumps(fields) + "\n"


def test_what_warnings_advise_is_told_once_and_nothing_else(tmp_path):
    log = Log(tmp_path / "param_store.log")
    assert log.advice() == ()
    log.path.write_text(
        _line(event="redis.may_lose_data", level="warning", advice=RISK)
        + _line(event="redis.adopted", level="info", advice="not a warning")
        + "a sentence for people\n[1]\n3\n{\n"
        + _line(event="redis.may_lose_data", level="warning", advice=RISK)
        + _line(event="other", level="warning", advice=7)
        + _line(event="other", level="warning")
    )
    assert log.advice() == (RISK,)


def test_a_log_that_is_none_advises_nothing(tmp_path):
    os.mkfifo(tmp_path / "param_store.log")
    assert Log(tmp_path / "param_store.log").advice() == ()
    assert Log(tmp_path / "param_store.log").last_words() == ""
