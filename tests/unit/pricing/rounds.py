"""Records of rounds as tests need them."""

from marless.record import GroupRecord, InvocationRecord, RoundRecord
from tests.unit.test_record import record


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
