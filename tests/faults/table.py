"""The table of faults: what befalls a job of each schedule and family, at which moments, and what must hold then.

A line says "schedule | job | fault | promises"; the indented words below it are its cells, the moments of the fault.
Braces stand for each of their words. `make test` strikes at each moment, but at those with ~, which `make test-slow`
takes, and those with !, which `make faults` takes.

The services of most jobs are in this process, and a fault strikes at a named moment. Those of the last lines are
processes: "8/20" strikes 8 times in a job of 20 rounds; some faults have moments or seconds before the slash.

`jobs` has the jobs of both, `strikes` the faults, `promises` the promises. Those in EVERYWHERE hold in each cell, too.
`python -m tests.faults.table` prints how many cells each schedule, job and fault has.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from bench.harness import Row, table

TABLE = """
synchronous | ippo | coordinator killed | same
    {take_over,pending,record,drop}.{before,after} {epoch,status,checkpoint}.after status.after:{2,3}
    ~{epoch,status,checkpoint}.before ~status.before:{2,3} ~{pending,record,checkpoint}.{before,after}:3
synchronous | ippo | coordinator killed over and over in each round | same trained:1 sampled:3
    pending.before+pending.after+carry.after+record.before+record.after
synchronous | ippo | coordinator killed while half a checkpoint is restored | same
    {drop,restore,cut}.after ~{drop,restore,cut}.before
synchronous | ippo | learner_pool restarted | same trained:1
    after-train:1 before-evaluate:2
synchronous | ippo | {param_store,actor_pool} restarted | same
    after-update:1+before-train:3
synchronous | ippo | learner_pool restarted, its answer lost | same trained:1
    after-update:1
synchronous | ippo | actor_pool restarted, its answer lost | same trained:1 sampled:1
    {before,after}-evaluate:0
synchronous | ippo | store loses the job | same restored
    before-train:{1,2,3}
synchronous | ippo | learner_pool workers die | same attempts:1,2,1,1,2
    learner.publish.after:3
synchronous | ippo | ended and resumed | learned
    3
synchronous | ippo groups | coordinator killed | same trained:1
    pending.before:3 pending.after:5 record.before:{3,5} ~pending.before:5 ~pending.after:3 ~record.after:{3,5}
synchronous | ippo groups | coordinator killed over and over in each round | same
    record.after
synchronous | ippo groups | learner_pool restarted, its answer lost | same trained:1 sampled:1
    after-update:{2,4}
synchronous | ippo groups | store loses the job | same
    before-train:{2,4}
synchronous | ippo groups | learner_pool workers die | same retried
    ~learner.publish.after:{4,6}
synchronous | mappo groups | learner_pool restarted, its answer lost | same trained:1
    after-update:2
synchronous | ippo splits | coordinator killed | same groups:1,1,3,3
    record.after:2 pending.after:3 ~pending.before:3 ~record.before:3
synchronous | ippo decides | coordinator killed over and over in each round | same measured
    record.after
synchronous | {mappo,vdn} decides | coordinator killed over and over in each round, learner_pool once | same measured
    ~record.after
synchronous | {maddpg,pqn_vdn} groups | coordinator killed over and over in each round, learner_pool once | same
    record.after
synchronous | ippo trends | coordinator killed over and over in each round | same
    record.after
synchronous | ippo carried | coordinator killed | same
    pending.after:4 carry.before:4 ~pending.before:4 ~carry.after:4 ~record.before:4
synchronous | {vdn,maddpg} carried | coordinator killed | same
    ~{pending,carry}.{before,after}:4 ~record.before:4
synchronous | vdn carried | actor_pool restarted | same
    before-train:2+after-train:4
synchronous | {ippo,maddpg} carried | actor_pool restarted | same
    ~before-train:2+after-train:4
synchronous | ippo carried | actor_pool workers die | same retried
    actor.carry.before:3 ~actor.carry.after:3
synchronous | {vdn,maddpg} carried | actor_pool workers die | same retried
    ~actor.carry.{before,after}:3
synchronous | maddpg carried | learner_pool restarted, its answer lost | same sampled:1,1,1,2,1,1,1
    before-update:3
synchronous | {ippo,vdn} carried | learner_pool restarted, its answer lost | same sampled:1,1,1,2,1,1,1
    ~before-update:3
synchronous | ippo carried | store loses the job | same
    before-train:5
synchronous | {vdn,maddpg} carried | store loses the job | same
    ~before-train:5
synchronous | ippo carried | ended and resumed | learned
    ~4
synchronous | iql wraps | learner_pool restarted | same
    after-train:3 ~before-train:3
synchronous | iql wraps | learner_pool workers killed | same
    after-train:3
synchronous | iql | store loses the job | same
    after-update:3
synchronous | ippo images | coordinator killed | same
    pending.after:4 ~carry.before:3 ~record.before:{2,4}
synchronous | ippo walls | coordinator killed | same
    pending.after:4 ~carry.before:3 ~record.before:{2,4}
synchronous | ippo walls | actor_pool workers die | same retried
    actor.carry.before:3 ~actor.carry.after:3
synchronous | iql images | learner_pool restarted, its answer lost | same
    after-update:4 ~before-update:{2,4}
synchronous | {ippo,iql} images | store loses the job | same
    ~before-train:3
synchronous | {ippo,mappo,impact,iql,vdn,qmix,iddpg,maddpg,sac,pqn,pqn_vdn} everything | coordinator killed | computed
    record.before:2
synchronous | {ippo,mappo} everything | ended and resumed | computed
    3
synchronous | ippo bucket | coordinator killed | same
    take_over.after pending.after:2 record.{before,after}:3 checkpoint.after drop.before
    ~pending.before:2 ~drop.after ~status.after:3
synchronous | ippo bucket | coordinator killed, store loses the job | same restored:2
    record.after:4

pipelined | ippo everything | coordinator killed | same
    pending.after pending.before:2 carry.after:2 record.after:3 checkpoint.after drop.before
    ~pending.before ~pending.{before,after}:{3,4}
    ~carry.{before,after}:{1,3,4} ~record.before:{1,3,4} ~record.after:{1,4}
pipelined | vdn everything | coordinator killed | same
    pending.after:2 record.before:2
pipelined | maddpg everything | coordinator killed | same
    ~{pending,carry,record}.{before,after}:{1,3,4}
pipelined | ippo everything | coordinator killed over and over in each round | same trained:1
    pending.before+pending.after+carry.before+carry.after+record.before+record.after
pipelined | ippo everything | learner_pool restarted | same
    after-train:2 after-update:2
pipelined | maddpg everything | learner_pool restarted | same
    before-update:2
pipelined | ippo everything | actor_pool restarted | same
    before-train:3
pipelined | vdn everything | actor_pool restarted | same
    before-update:2
pipelined | ippo everything | param_store restarted | same
    after-update:2 before-train:2
pipelined | ippo everything | store loses the job | same
    before-train:{1,4} before-update:{2,5} ~before-train:{2,5} ~before-update:{1,4}
pipelined | ippo everything | actor_pool workers die | same
    actor.carry.before:3
pipelined | maddpg everything | actor_pool workers die | same
    ~actor.carry.before:3
pipelined | ippo everything | ended and resumed | learned
    {1,3} ~2
pipelined | ippo bucket | coordinator killed | same
    pending.after:2 record.before:3 drop.before
    ~take_over.after ~pending.before:2 ~record.after:3 ~checkpoint.after ~drop.after ~status.after:3
pipelined | ippo bucket | coordinator killed, store loses the job | same restored:2
    record.after:4

stellaris | ippo | coordinator killed | followed
    {pending,record}.{before,after}:4 checkpoint.after drop.before ~{pending,record}.{before,after}:1
stellaris | ippo | {actor_pool,learner_pool,param_store} restarted | followed
    after-{sample,gradient}:5
stellaris | ippo | store loses the job | followed went-back
    before-sample:9 before-gradient:6
stellaris | ippo | actor_pool workers die | followed none-lost
    actor.upload.before:3
stellaris | ippo | learner_pool workers die | followed none-lost
    learner.publish.before:3
stellaris | ippo | ended and resumed | followed
    3
stellaris | vdn | coordinator killed | followed kept
    {pending,record}.{before,after}:4 checkpoint.after drop.before ~{pending,record}.{before,after}:1
stellaris | vdn | {actor_pool,learner_pool,param_store} restarted | followed kept
    after-update:5 ~after-sample:5
stellaris | {qmix,maddpg,pqn_vdn} | {actor_pool,learner_pool,param_store} restarted | followed kept
    ~after-{sample,update}:5
stellaris | vdn | store loses the job | followed kept went-back
    before-sample:9 {before,after}-update:5
stellaris | {qmix,maddpg,pqn_vdn} | store loses the job | followed kept went-back
    ~before-sample:9 ~{before,after}-update:5
stellaris | iddpg rivals | actor_pool workers die | followed kept none-lost
    ~actor.upload.before:3
stellaris | iddpg rivals | learner_pool workers die | followed kept none-lost
    learner.publish.after:3 ~learner.publish.before:3
stellaris | ippo groups | coordinator killed | followed regrouped groups:3,3,1,1,3,3,1,1,3
    {pending,record}.{before,after}:3 ~{pending,record}.{before,after}:{2,5}
stellaris | vdn groups | coordinator killed | followed regrouped groups:3,3,1,1,3,3,1,1,3
    pending.after:3 record.before:3 ~{pending.before,record.after}:3 ~{pending,record}.{before,after}:{2,5}

{synchronous,pipelined} | small | kill -9 of anything | same
    8/20 !100/300
{synchronous,pipelined} | small | kill -9 of the coordinator around its writes | same trained:1
    ~each/60 !60/300
{synchronous,pipelined} | small | kill -9 of the coordinator as it restores a checkpoint | same
    ~3/60 !30/300
{synchronous,pipelined} | small | kill -9 at {actor.carry,learner.publish,param_store.publish}.after | same trained:1
    ~1/60 !5/300
{synchronous,pipelined} | small | kill -9 at {actor.carry,param_store.publish}.before | same trained:1
    !5/300
{synchronous,pipelined} | small | kill -9 at learner.publish.before | same
    !5/300
{synchronous,pipelined} | small | SIGSTOP of coordinators and learners | same
    ~1/60 !10/300
synchronous | small | kill -9 of the coordinator as it accepts a job | same
    ~2/5 !20/5
synchronous | small | connections cut | same
    ~0.3/60 !1+5+30/300
synchronous | small | clocks jump | same
    ~3/60 !60/300
synchronous | two-scopes | kill -9 of the coordinator during updates | same trained:2
    ~half+twice/15 !8/40
synchronous | changing | kill -9 of the coordinator around its writes | same trained:1 changed
    ~4/12 !60/300
synchronous | changing | kill -9 of the coordinator as it restores a checkpoint | same changed
    !30/300
synchronous | changing | kill -9 at {actor.carry,param_store.publish}.{before,after} | same trained:1 changed
    !5/300
synchronous | changing | kill -9 at learner.publish.after | same trained:1 changed
    !5/300
synchronous | changing | kill -9 at learner.publish.before | same changed
    !5/300
synchronous | remembering | kill -9 of learners | same wrapped
    ~2/14 !60/300
synchronous | remembering | kill -9 at learner.publish.before | same wrapped
    ~1/14 !5/300
synchronous | remembering | kill -9 at learner.publish.after | same trained:1 wrapped
    !5/300
synchronous | remembering | kill -9 of the coordinator during updates | same trained:1 wrapped
    ~between/15 !8/40
stellaris | {asynchronous,replayed} | kill -9 of anything | followed
    8/20
stellaris | learning | kill -9 of anything, compared with other seeds | followed
    !100/400
stellaris | learning | kill -9 of the store around aggregations | followed
    4/40 !20/300
"""
SLOW, FULL = "~", "!"
BRACES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    schedule: str
    job: str
    fault: str
    when: str
    """The moment, in words of the fault."""
    holds: tuple[str, ...]
    """The promises, without those that hold everywhere."""
    target: str = ""
    """SLOW or FULL if `make test` leaves it out."""

    def __str__(self) -> str:
        return f"{self.schedule} {self.job}: {self.fault}: {self.when}"


def expanded(text: str) -> list[str]:
    """What a word with braces stands for."""
    parts = BRACES.split(text)
    choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(each) for each in itertools.product(*choices)]


def cells(schedule: str = "", *, target: str | None = None) -> Iterator[Cell]:
    """Every cell of the table, or those of one schedule or target."""
    line: list[str] = []
    for text in filter(None, TABLE.splitlines()):
        if not text.startswith(" "):
            line = [each.strip() for each in text.split("|")]
            continue
        *names, holds = line
        for word in text.split():
            own = word[0] if word[0] in (SLOW, FULL) else ""
            for known, job, fault, when in itertools.product(*map(expanded, (*names, word.removeprefix(own)))):
                if schedule in ("", known) and target in (None, own):
                    yield Cell(known, job, fault, when, tuple(holds.split()), own)


def counts() -> list[Row]:
    """How many cells each schedule, job and fault has, by the target that strikes there."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for cell in cells():
        found.setdefault((cell.schedule, cell.job, cell.fault), Counter())[cell.target] += 1
    return [
        dict(zip(("schedule", "job", "fault"), name, strict=True))
        | {"make test": each[""], "make test-slow": each[SLOW], "make faults": each[FULL]}
        for name, each in found.items()
    ]


if __name__ == "__main__":
    sys.stdout.write(f"{table(counts())}\n")
