"""The contract of schedules, as a test that anyone can run on a schedule of their own: `check_schedule(schedule)`.

A schedule of rounds is walked through every state that a job of a few rounds can be in, with and without a known end,
and through what may happen in it: any command that is under way ends first. One whose rollouts overlap has too many
states for that, so it is walked through some of them by chance, by seed, with losses and restarts on the way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from marless.jobs.schedules.base import Command, Learn, Publish, RollOut, Schedule, Step, Train, after
from marless.jobs.schedules.events import ScheduleEvent
from marless.jobs.schedules.overlapping import Overlapping, learner_of

ROUNDS = 8
"""Rounds of the jobs that are walked through."""
ACTORS = 4
WALKS, EVENTS = 20, 150
LOST, RESTARTED = 0.1, 0.02
"""How often a command is lost, and everything."""


def check_schedule(schedule: Schedule[Any], *, actors: int = ACTORS) -> None:  # Any: states of its own
    """Raise AssertionError, naming the state, if the schedule breaks a rule of `Schedule`.

    Args:
        schedule: Of any kind.
        actors: A number of actors that fits its settings.
    """
    if isinstance(schedule.begin(actors).state, Overlapping):
        for seed in range(WALKS):
            _Walk(schedule, random.Random(seed)).go(actors)
    else:
        _check_rounds(schedule, actors)


def _check_rounds(schedule: Schedule[Any], actors: int) -> None:
    assert schedule.ahead in (0, 1), f"ahead is {schedule.ahead}; it is 0 or 1"
    clocks: dict[int, int] = {}
    for last in (None, *range(ROUNDS)):
        for known in positions(schedule.ahead, last):
            state = after(schedule, actors, known.events()).state
            due = schedule.under_way(state)
            assert due == schedule.under_way(state), f"{known}: two calls give two answers"
            assert due, f"{known}: nothing is due, and the job has not ended"
            assert len(set(due)) == len(due), f"{known}: a command is due twice: {due}"
            for command in due:
                _check(schedule.ahead, known, command, clocks)
            _check_goes_on(schedule, known, state, due)


@dataclass(frozen=True)
class Position:
    """How far a job that trains in rounds is."""

    recorded: int
    rolled_out: int
    """Rounds that are rolled out and not recorded."""
    last: int | None

    def events(self) -> Iterator[ScheduleEvent]:
        """What has led there, as a coordinator that takes the job over reads it."""
        if self.last is not None:
            yield ScheduleEvent("last", self.last)
        if self.recorded:
            yield ScheduleEvent("version", self.recorded - 1)
        for number in range(self.recorded, self.recorded + self.rolled_out):
            yield ScheduleEvent("rollout", number)


def positions(ahead: int, last: int | None) -> Iterator[Position]:
    """Every position of a job before its end, in which no round is too far ahead."""
    for recorded in range(ROUNDS if last is None else last + 1):
        for count in range(ahead + 2):
            if last is None or recorded + count - 1 <= last:
                yield Position(recorded, count, last)


def _check(ahead: int, at: Position, command: Command, clocks: dict[int, int]) -> None:
    what, first = f"{at}: {command}", at.recorded + at.rolled_out
    if isinstance(command, Train):
        assert command.round == at.recorded, f"{what}: only round {at.recorded} can be trained"
        assert at.rolled_out, f"{what}: it is not rolled out"
        return
    assert isinstance(command, RollOut), f"{what}: a schedule of rounds rolls out and trains"
    assert command.number == first, f"{what}: round {first} is the next one to be rolled out"
    assert command.number - at.recorded <= ahead, f"{what}: that is further ahead than {ahead}"
    assert at.last is None or command.number <= at.last, f"{what}: round {at.last} is the last one"
    assert command.clock <= at.recorded, f"{what}: only {at.recorded} rounds are recorded"
    least = max(command.number - ahead, 0)
    assert least <= command.clock <= command.number, f"{what}: decided before {least} rounds were recorded"
    known = clocks.setdefault(command.number, command.clock)
    assert known == command.clock, f"{what}: in another state it was decided after {known} rounds"


def _check_goes_on(schedule: Schedule[Any], at: Position, state: Any, due: tuple[Command, ...]) -> None:
    """What is due stays due until it has ended, whatever ends before it; and what becomes due is started."""
    for ended in due:
        if isinstance(ended, Train) and ended.round == at.last:
            continue  # the job has ended
        step = schedule.step(state, _end(ended))
        now = schedule.under_way(step.state)
        for other in due:
            assert other == ended or other in now, f"{at}: {other} was due before {ended} ended, and is not now"
        begun = {command for command in now if command not in due}
        assert set(step.commands) == begun, f"{at}: {ended} starts {step.commands}, and {begun} are due"


def _end(command: Command) -> ScheduleEvent:
    match command:
        case RollOut(number):
            return ScheduleEvent("rollout", number, env_steps=1)
        case Train(round_):
            return ScheduleEvent("version", round_)
        case Learn(learner):
            return ScheduleEvent("gradient", learner)
        case Publish(aggregation):
            return ScheduleEvent("version", aggregation.clock)


@dataclass
class _Walk:
    """One job whose rollouts overlap."""

    schedule: Schedule[Overlapping]
    rng: random.Random
    under_way: list[RollOut | Learn] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    """Rollouts that have ended, and are not learned from."""
    gradients: set[int] = field(default_factory=set)
    """Learners whose gradients have arrived, and are part of no version."""
    clock: int = 0
    rollouts: int = 0
    learners: int = 0

    def go(self, actors: int) -> None:
        """Go through some events."""
        self._follow(step := self.schedule.begin(actors), "the beginning")
        for _ in range(EVENTS):
            assert self.under_way, f"{step.state}: nothing is under way, and the job has not ended"
            event = self._event()
            what = f"{step.state}: {event}"
            step, again = self.schedule.step(step.state, event), self.schedule.step(step.state, event)
            assert step == again, f"{what}: two calls give two answers"
            self._follow(step, what)
            if step.published:
                version = self.schedule.step(step.state, ScheduleEvent("version", step.published.clock))
                self._follow(step := version, what)

    def _event(self) -> ScheduleEvent:
        """Something happens: take note of it."""
        chance = self.rng.random()
        if chance < RESTARTED:
            self.under_way, self.waiting, self.gradients = [], set(), set()
            return ScheduleEvent("restart")
        ended = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        lost = chance < RESTARTED + LOST
        if isinstance(ended, RollOut):
            self.waiting |= set() if lost else {ended.number}
            return ScheduleEvent("lost rollout", ended.number) if lost else _end(ended)
        self.gradients |= set() if lost else {ended.learner}
        return ScheduleEvent("lost gradient", ended.learner) if lost else _end(ended)

    def _follow(self, step: Step[Overlapping], what: str) -> None:
        """Check the commands, and that the state knows of all that is under way."""
        for command in step.commands:
            match command:
                case RollOut(number, clock):
                    assert number == self.rollouts, f"{what}: {command}: rollout {self.rollouts} is the next one"
                    assert clock == self.clock, f"{what}: {command}: the newest version is {self.clock}"
                    self.rollouts += 1
                    self.under_way.append(command)
                case Learn(learner, rollouts, clock):
                    assert learner == self.learners, f"{what}: {command}: learner {self.learners} is the next one"
                    assert clock == self.clock, f"{what}: {command}: the newest version is {self.clock}"
                    assert self.waiting.issuperset(rollouts), f"{what}: {command}: only {self.waiting} wait"
                    self.waiting -= set(rollouts)
                    self.learners += 1
                    self.under_way.append(command)
                case Publish(aggregation):
                    applied = {learner_of(each.gradient) for each in aggregation.gradients}
                    assert self.gradients.issuperset(applied), f"{what}: {command}: only {self.gradients} wait"
                    assert aggregation.clock == self.clock, f"{what}: {command}: the newest version is {self.clock}"
                    self.gradients -= applied
                    self.clock += 1
                case Train():
                    raise AssertionError(f"{what}: {command}: rollouts overlap, so no round is trained")
        found = set(self.schedule.under_way(step.state))
        assert found == set(self.under_way), f"{what}: {self.under_way} were started, and {found} are said to be"
