"""The contract of schedules, as a test that anyone can run on a schedule of their own: `check_schedule(schedule)`.

It walks through every state that a job of a few rounds can be in, with and without a known end, and through what may
happen in it: any command that is under way ends first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from marless.jobs.schedules.base import Command, RollOut, Schedule, ScheduleState, Train

ROUNDS = 8
"""Rounds of the jobs that are walked through."""


def check_schedule(schedule: Schedule) -> None:
    """Raise AssertionError, naming the state, if the schedule breaks a rule of `Schedule`."""
    assert schedule.ahead in (0, 1), f"ahead is {schedule.ahead}; it is 0 or 1"
    decided: dict[int, int] = {}
    for last in (None, *range(ROUNDS)):
        for state in states(schedule.ahead, last):
            due = schedule.due(state)
            assert due == schedule.due(state), f"{state}: two calls give two answers"
            assert due, f"{state}: nothing is due, and the job has not ended"
            assert len(set(due)) == len(due), f"{state}: a command is due twice: {due}"
            for command in due:
                _check(schedule, state, command, decided)
            _check_goes_on(schedule, state, due)


def states(ahead: int, last: int | None) -> Iterator[ScheduleState]:
    """Every state of a job before its end: rounds that are rolled out follow each other, and none is too far ahead."""
    for recorded in range(ROUNDS if last is None else last + 1):
        for count in range(ahead + 2):
            rolled_out = frozenset(range(recorded, recorded + count))
            if last is None or max(rolled_out, default=0) <= last:
                yield ScheduleState(recorded=recorded, rolled_out=rolled_out, last=last)


def _check(schedule: Schedule, state: ScheduleState, command: Command, decided: dict[int, int]) -> None:
    what = f"{state}: {command}"
    if isinstance(command, Train):
        assert command.round == state.recorded, f"{what}: only round {state.recorded} can be trained"
        assert command.round in state.rolled_out, f"{what}: it is not rolled out"
        return
    first = state.recorded + len(state.rolled_out)
    assert command.round == first, f"{what}: round {first} is the next one to be rolled out"
    assert command.round - state.recorded <= schedule.ahead, f"{what}: that is further ahead than {schedule.ahead}"
    assert state.last is None or command.round <= state.last, f"{what}: round {state.last} is the last one"
    assert command.decided <= state.recorded, f"{what}: only {state.recorded} rounds are recorded"
    least = max(command.round - schedule.ahead, 0)
    assert least <= command.decided <= command.round, f"{what}: decided before {least} rounds were recorded"
    known = decided.setdefault(command.round, command.decided)
    assert known == command.decided, f"{what}: in another state it was decided after {known} rounds"


def _check_goes_on(schedule: Schedule, state: ScheduleState, due: tuple[Command, ...]) -> None:
    """What is due stays due until it has ended, whatever ends before it."""
    for ended in due:
        after = _after(state, ended)
        if after.last is not None and after.recorded > after.last:
            continue  # the job has ended
        for other in due:
            assert other == ended or other in schedule.due(after), f"{after}: {other} was due before, and is not now"


def _after(state: ScheduleState, command: Command) -> ScheduleState:
    if isinstance(command, RollOut):
        return replace(state, rolled_out=state.rolled_out | {command.round})
    return replace(state, recorded=command.round + 1, rolled_out=state.rolled_out - {command.round})
