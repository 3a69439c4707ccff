"""Records of rounds as tests need them."""

from marless.jobs.record import GroupRecord, InvocationRecord, PhaseSeconds, RoundRecord
from marless.jobs.spec import JobSpec, parse
from tests.unit.jobs.test_record import record


def invocation(function: str, start_s: float, end_s: float, **changes) -> InvocationRecord:
    fields = {
        "id": f"j/0/{function}",
        "function": function,
        "name": "",
        "index": 0,
        "attempt": 1,
        "worker": "w-1",
        "queued_s": start_s - 1.0,
        "start_s": start_s,
        "end_s": end_s,
        "vcpu_s": end_s - start_s,
        "memory_bytes": 2**26,
        "cold": False,
    }
    return InvocationRecord(**fields | changes)


def round_of(*invocations: InvocationRecord, round_: int = 0, policies: tuple[str, ...] = (), **changes) -> RoundRecord:
    groups = tuple(GroupRecord(policy=name, agents=(name,), version=1) for name in policies)
    return record(round_, **{"invocations": invocations, "groups": groups} | changes)


def job(**sections) -> JobSpec:
    document = {"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}
    return parse(document | sections, "job")


def paper_round(round_: int, *, actor_s: float = 1.15, learner_s: float = 3.75, actors: int = 50) -> RoundRecord:
    """A round of IPPO with six agents at the papers' durations: every function on a vCPU of its own."""
    begin = 10.0 * round_ + 1e9
    middle, end = begin + actor_s, begin + actor_s + learner_s
    names = [f"agent_{i}" for i in range(6)]
    acting = [invocation("actor", begin, middle, index=i, queued_s=begin) for i in range(actors)]
    learning = [
        invocation(function, middle, end, name=name, queued_s=0.0)
        for function in ("critic", "policy")
        for name in names
    ]
    return round_of(
        *acting,
        invocation("learner", middle, end, queued_s=middle),
        *learning,
        round_=round_,
        policies=tuple(names),
        actors=actors,
        started_s=begin,
        ended_s=end,
        phases=PhaseSeconds(rollout=actor_s, update=learner_s, evaluation=0.0),
    )
