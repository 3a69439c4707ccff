"""A rollout: the actors of one round, queued on workers and gathered by index."""

from __future__ import annotations

from marless.documents import MAX_CHARACTERS
from marless.errors import SpecError
from marless.job import check_id
from marless.limits import MAX_ACTORS, MAX_COUNT, MAX_ENVS, MAX_EPISODES, MAX_STEPS, MAX_TIMEOUT_S
from marless.rpc.concurrency import gather
from marless.rpc.requests import check_groups, check_number, check_text, message
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.workers.dispatch import Dispatcher
from marless.rpc.workers.fleet import Fleet

_MOST_TASK_BYTES = 2**28
_FUNCTION = {
    actor_pool_pb2.ROLLOUT_MODE_TRAIN: "actor",
    actor_pool_pb2.ROLLOUT_MODE_GREEDY: "evaluation",
    actor_pool_pb2.ROLLOUT_MODE_RANDOM: "evaluation",
}


class Rollouts:
    """Turns rollout requests into tasks, one per actor."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet

    async def run(self, request: actor_pool_pb2.RolloutRequest) -> actor_pool_pb2.RolloutResponse:
        """Run all actors of the request; the first error ends the rollout and is raised."""
        tasks = _tasks(request)
        await self._fleet.ensure(len(tasks))
        results = await gather(self._run_one(task) for task in tasks)
        return actor_pool_pb2.RolloutResponse(
            receipts=[
                message(actor_pool_pb2.RolloutReceipt, result.payload, "an actor's receipt") for result in results
            ],
            invocations=[each for result in results for each in (result.invocation, *result.lost)],
        )

    async def _run_one(self, task: actor_pool_pb2.RolloutTask) -> common_pb2.TaskResult:
        function = _FUNCTION[task.mode]
        mode = actor_pool_pb2.RolloutMode.Name(task.mode).removeprefix("ROLLOUT_MODE_").lower()
        result = await self._dispatcher.run(
            f"{task.job}/{task.round}/{mode}/{task.index}",
            task.SerializeToString(),
            timeout_s=task.settings.timeout_s,
            setting="actors.timeout_s",
        )
        for each in (result.invocation, *result.lost):
            each.function, each.index = function, task.index
        return result


def _check(request: actor_pool_pb2.RolloutRequest) -> None:
    settings = request.settings
    check_id(request.job)
    for what, value, least, most in (
        ("round", request.round, 0, MAX_COUNT),
        ("seed", settings.seed, 0, MAX_COUNT),
        ("epoch", settings.epoch, 0, MAX_COUNT),
        ("envs", settings.envs, 1, MAX_ENVS),
        ("steps", settings.steps, 1, MAX_STEPS),
        ("timeout_s", settings.timeout_s, 1e-3, MAX_TIMEOUT_S),
        ("episodes", request.episodes, 0, MAX_EPISODES),
    ):
        check_number(f"a rollout's {what}", value, least, most)
    check_text("a rollout's env", settings.env)
    if len(settings.env_options_json) > MAX_CHARACTERS:
        raise SpecError(f"a rollout's env_options_json is longer than {MAX_CHARACTERS:,} characters")
    check_groups(request.groups)
    check_number("a rollout's bytes, times its actors,", request.ByteSize() * request.actors, most=_MOST_TASK_BYTES)


def _tasks(request: actor_pool_pb2.RolloutRequest) -> list[actor_pool_pb2.RolloutTask]:
    if request.mode not in _FUNCTION:
        raise SpecError("a rollout needs a mode: TRAIN, GREEDY or RANDOM")
    if not 1 <= request.actors <= MAX_ACTORS:
        raise SpecError(f"a rollout needs 1 to {MAX_ACTORS} actors, got {request.actors}")
    _check(request)
    train = request.mode == actor_pool_pb2.ROLLOUT_MODE_TRAIN
    actors = request.actors if train else min(request.actors, request.episodes)
    share, rest = divmod(request.episodes, max(actors, 1))
    return [
        actor_pool_pb2.RolloutTask(
            job=request.job,
            round=request.round,
            mode=request.mode,
            index=index,
            settings=request.settings,
            groups=request.groups,
            episodes=0 if train else share + (index < rest),
        )
        for index in range(actors)
    ]
