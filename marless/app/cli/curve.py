"""Draws the training curve of a run."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path

from marless.core import regular_files
from marless.core.limits import MAX_STATUS_BYTES
from marless.storage.round_file import read

Point = tuple[int, float]


@dataclass
class _Course:
    """Number of rounds, training time in seconds, and returns over env steps."""

    rounds: int = 0
    trained_s: float = 0.0
    exploring: list[Point] = field(default_factory=list)
    greedy: list[Point] = field(default_factory=list)


def draw(folder: Path) -> Path | None:
    """Draw `curve.png` from a run folder's records; None without records or without matplotlib (extra `plot`).

    Raises OSError if it cannot be written, CorruptError if the records cannot be read.
    """
    course = _course(folder / "rounds.jsonl")
    if not course.rounds or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    status = json.loads(regular_files.read(folder / "job.json", MAX_STATUS_BYTES))
    figure = Figure(figsize=(8, 4.5))
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.12, top=0.92)  # computing a layout takes longer than drawing
    axes = figure.add_subplot(xlabel="env steps (all agents act once in one copy)", ylabel="return per agent")
    if course.exploring:
        axes.plot(
            *zip(*course.exploring, strict=True), color="tab:blue", alpha=0.5, linewidth=1, label="while exploring"
        )
    if course.greedy:
        axes.plot(
            *zip(*course.greedy, strict=True), color="tab:blue", marker="o", markersize=3, label="greedy evaluation"
        )
    if status.get("random"):
        axes.axhline(status["random"]["mean"], color="tab:gray", linestyle="--", label="random policy")
    axes.set_title(f"{status['job']}: {course.rounds} rounds in {course.trained_s:.1f} s of training")
    if axes.get_legend_handles_labels()[0]:  # none, if no episode has ended
        axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    target = folder / "curve.png"
    figure.savefig(target, dpi=120)
    return target


def _course(path: Path) -> _Course:
    course = _Course()
    for record in read(path):
        course.rounds = record.round + 1
        course.trained_s += record.spent_s
        if record.returns:
            course.exploring.append((record.env_steps, record.returns.mean))
        course.greedy += [(each.env_steps, each.returns.mean) for each in record.evaluations]
    return course
