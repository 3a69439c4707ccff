"""Contenders that nobody trained: runs whose returns, seconds and dollars at each round are given."""

from collections.abc import Mapping, Sequence

from marless.cost.frontier.contenders import Contender, SeedRun, StaticSetting
from marless.cost.frontier.progress import RunProgress, Spending

Line = Sequence[float]


def seed_run(
    returns: Sequence[float | None],
    *,
    seed: int = 0,
    random: float = -40.0,
    greedy: float = -20.0,
    s: float = 1.0,
    paper: float = 1.0,
    billed: float = 10.0,
    machines: Mapping[str, tuple[float, float]] | None = None,
) -> SeedRun:
    """A run of 100 env steps a round; each takes `s` seconds and so many dollars; on machines, (seconds, dollars)."""
    rounds = range(1, len(returns) + 1)
    ends = tuple(s * number for number in rounds)

    def spending(usd: float, seconds: Line = ends) -> Spending:
        return Spending(seconds=tuple(seconds), usd=tuple(usd * number for number in rounds))

    own = {name: spending(usd, [took * number for number in rounds]) for name, (took, usd) in (machines or {}).items()}
    known = RunProgress(
        env_steps=tuple(100 * number for number in rounds),
        returns=tuple(returns),
        functions={"paper": spending(paper), "billed": spending(billed)},
        machines=own,
    )
    return SeedRun(run=f"run-{seed}", seed=seed, progress=known, random=random, greedy=greedy, actors=4.0)


def static(actors: int, *runs: SeedRun, failed: tuple[str, ...] = ()) -> Contender:
    setting = StaticSetting(actors=actors, groups="shared", schedule="synchronous")
    return Contender(name=setting.name, static=setting, runs=runs, failed=failed)


def preset(name: str, *runs: SeedRun) -> Contender:
    return Contender(name=name, static=None, runs=runs)
