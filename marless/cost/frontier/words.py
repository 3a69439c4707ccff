"""What a frontier says, as sentences with their numbers; and the block of a document that holds it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence

from marless.cost.comparison.report import MUCH_WAITING
from marless.cost.comparison.statistics import MeanInterval
from marless.cost.frontier.progress import SMOOTHED
from marless.cost.frontier.regret import Regret
from marless.cost.frontier.table import Frontier, markdown


def statements(found: Frontier, *, in_process: bool) -> list[str]:
    """All sentences: the goal, regrets, what did not reach it or failed, and the terms."""
    return [
        found.goal.rule,
        *(_regret(each, found) for each in found.regrets),
        *_unreached(found),
        *_failed(found),
        *_waiting(found),
        _returns(found),
        _costs(found, in_process=in_process),
    ]


def _regret(each: Regret, found: Frontier) -> str:
    against = "settings with functions or machines of one's own" if each.own_machines else "settings with functions"
    begin = f"Regret of {each.preset}, by {each.accounting} accounting, against {against}:"
    if not each.reached:
        return f"{begin} it does not reach the goal with every seed, so it has none."
    if each.best is None or each.ratio is None:
        anything = any(found.functions(each.accounting).get(other.name) for other in found.static)
        return f"{begin} {'faster than every static setting' if anything else 'no static setting reaches the goal'}."
    return f"{begin} {_more(each.ratio)} than {each.best.words}, the cheapest that is as fast."


def _more(ratio: MeanInterval) -> str:
    """A ratio of costs as text: "12 % more [3 to 20 %]"; negative numbers are less."""
    said = f"{abs(ratio.mean - 1) * 100:.0f} % {'more' if ratio.mean >= 1 else 'less'}"
    if ratio.low is None or ratio.high is None:
        return said
    low, high = sorted(round((end - 1) * 100 * (1 if ratio.mean >= 1 else -1)) for end in (ratio.low, ratio.high))
    return f"{said} [{low} to {high} %]"


def _unreached(found: Frontier) -> Iterator[str]:
    short = [
        f"{each.name} ({each.reached(found.goal.value)} of {len(each.runs)} seeds)"
        for each in found.contenders
        if each.complete and each.arrivals(found.goal.value) is None
    ]
    if short:
        yield f"Not reached with every seed, so without a cost: {', '.join(short)}."


def _failed(found: Frontier) -> Iterator[str]:
    for each in found.contenders:
        if each.failed:
            yield f"{each.name} is left out of the goal and of regrets: {', '.join(each.failed)} did not finish."
        elif not each.complete:
            yield f"{each.name} is left out of the goal and of regrets: no episode ended in its last env steps."


def _waiting(found: Frontier) -> Iterator[str]:
    crowded = [
        f"{each.name} ({1 + max(run.waiting for run in each.runs):.1f} times)"
        for each in found.contenders
        if found.time == "duration" and any(run.waiting > MUCH_WAITING for run in each.runs)
    ]
    if crowded:
        yield (
            f"Durations contain waiting: actors took longer than their CPU seconds with {', '.join(crowded)}. If they "
            "waited for a core, leave bill.time out, so that CPU seconds count. If their environments wait, that is "
            "part of the cost."
        )


def _returns(found: Frontier) -> str:
    lengths = [run.progress.env_steps[-1] for each in found.contenders for run in each.runs]
    return (
        "Returns are per agent, of training episodes (exploring), averaged over those that ended in the last "
        f"{SMOOTHED * 100:.0f} % of the job's env steps ({found.window:,}), so small and large rounds are smoothed "
        "alike. The goal is reached at the end of the first round where this average is there. Runs end with the round "
        f"that reaches {found.env_steps:,} env steps: {min(lengths):,} to {max(lengths):,}."
    )


def _costs(found: Frontier, *, in_process: bool) -> str:
    starts = "Runs were made in one process, whose records have no starts: all functions are warm. "
    means = (
        f"Costs to the goal are geometric means over {len(found.seeds)} seeds; seconds, env steps and returns are "
        "means ± 95 % Student t intervals; regrets have 95 % intervals of a paired bootstrap over seeds. "
    )
    seconds = "CPU seconds" if found.time == "cpu" else "durations"
    return (
        f"{means if len(found.seeds) > 1 else 'One seed: no intervals. '}Modelled: the recorded functions, by their "
        f"{seconds}, on {found.slots} vCPUs, where they are billed, too. Machines of one's own are paid from the first "
        "round to the last at their price per second; all sizes of the family are tried. "
        f"{starts if in_process else ''}Returns differ by the number of actors, because rounds then differ in size."
    )


def block(found: Frontier, said: Sequence[str], *, command: str, picture: str) -> str:
    """The contents of a block: the command, the table, the picture, the statements, and where it ran."""
    listed = "\n".join(f"- {sentence}" for sentence in said)
    shown = f"![Cost and return, cost and time to the goal, return over env steps]({picture})"
    runs = sum(len(each.runs) for each in found.contenders)
    where = (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{platform.python_version()}: {runs} runs of {found.env_steps:,} env steps."
    )
    return "\n\n".join([f"```sh\n{command}\n```", markdown(found), shown, listed, where])
