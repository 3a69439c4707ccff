"""Streams of a job's events and log lines: each exactly once and in order, even if the connection breaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from marless.app.client.connection import Connection
from marless.app.client.jobs import Event, Job, LogLine, event_of, job_of
from marless.rpc.v1 import coordinator_pb2 as pb


async def watch(connection: Connection, job: str, cursor: int) -> AsyncGenerator[Event, None]:
    """Yield rounds from `cursor` on, and changes of state, until the job has ended."""
    told: Job | None = None

    def request() -> pb.WatchJobRequest:
        return pb.WatchJobRequest(job=job, cursor=cursor)

    async with aclosing(connection.stream(connection.stub.WatchJob, request, lasting=True)) as messages:
        async for message in messages:
            event = event_of(message)
            if event.record is not None and event.cursor <= cursor:
                continue
            cursor = max(cursor, event.cursor)
            if event.job is None:
                yield event
                continue
            changed = told is None or _standing(told) != _standing(event.job)
            told = event.job
            if changed:
                yield event
            if told.state.ended:
                return


def _standing(job: Job) -> Job:
    """A job without the fields that change with every round, to detect changes of state: each new stream begins with
    the present state, changed or not.
    """
    return replace(job, rounds=0, env_steps=0, greedy_return=None, win_rate=None)


async def logs(
    connection: Connection, job: str, *, follow: bool, tail: int, cursor: int
) -> AsyncGenerator[LogLine, None]:
    """Yield log lines from `cursor` on, or the last `tail` ones; with `follow`, until the job has ended."""
    ended = False

    def request() -> pb.StreamLogsRequest:
        # Once the job has ended, one more stream, which does not follow, brings what was written until then.
        return pb.StreamLogsRequest(job=job, cursor=cursor, tail=tail, follow=follow and not ended)

    while True:
        async with aclosing(connection.stream(connection.stub.StreamLogs, request)) as messages:
            async for message in messages:
                if message.cursor > cursor:
                    # A stream that is begun anew goes on at the cursor: by its tail it would leave lines out.
                    cursor, tail = message.cursor, 0
                    yield LogLine(cursor=cursor, text=message.json)
        if ended or not follow:
            return
        # A followed stream also ends when the coordinator stops, so check whether the job itself has ended.
        ended = job_of((await connection.call(connection.stub.GetJob, pb.GetJobRequest(job=job))).job).state.ended
