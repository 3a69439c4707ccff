"""The training curve of a run, as a picture."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from marless.record import RoundRecord
from marless.round_file import read

Point = tuple[int, float]


def draw(folder: Path) -> Path | None:
    """Draw `curve.png` from a run folder's records; None without records or without matplotlib (extra `plot`).

    Raises OSError if it cannot be written, CorruptError if the records cannot be read.
    """
    first, last, exploring, greedy = _course(folder / "rounds.jsonl")
    if first is None or last is None or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    status = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="env steps (all agents act once in one copy)", ylabel="return per agent")
    if exploring:
        axes.plot(*zip(*exploring, strict=True), color="tab:blue", alpha=0.5, linewidth=1, label="while exploring")
    if greedy:
        axes.plot(*zip(*greedy, strict=True), color="tab:blue", marker="o", markersize=3, label="greedy evaluation")
    if status.get("random"):
        axes.axhline(status["random"]["mean"], color="tab:gray", linestyle="--", label="random policy")
    axes.set_title(f"{status['job']}: {last.round + 1} rounds in {last.ended_s - first.started_s:.1f} s")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    target = folder / "curve.png"
    figure.savefig(target, dpi=120)
    return target


def _course(path: Path) -> tuple[RoundRecord | None, RoundRecord | None, list[Point], list[Point]]:
    """The first and the last round, and returns over env steps while exploring and of greedy play."""
    first = last = None
    exploring, greedy = [], []
    for last in read(path):
        first = first or last
        if last.returns:
            exploring.append((last.env_steps, last.returns.mean))
        if last.evaluation:
            greedy.append((last.env_steps, last.evaluation.mean))
    return first, last, exploring, greedy
