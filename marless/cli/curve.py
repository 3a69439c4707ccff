"""The training curve of a run, as a picture."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from marless.record import read


def draw(folder: Path) -> Path | None:
    """Draw `curve.png` from a run folder's records; None without records or without matplotlib (extra `plot`).

    Raises OSError if it cannot be written, CorruptError if the records cannot be read.
    """
    records = list(read(folder / "rounds.jsonl"))
    if not records or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    status = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    start_s = records[0].started_s
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="env steps (all agents act once in one copy)", ylabel="return per agent")
    exploring = [(r.env_steps, r.returns.mean) for r in records if r.returns]
    greedy = [(r.env_steps, r.evaluation.mean) for r in records if r.evaluation]
    if exploring:
        axes.plot(*zip(*exploring, strict=True), color="tab:blue", alpha=0.5, linewidth=1, label="while exploring")
    if greedy:
        axes.plot(*zip(*greedy, strict=True), color="tab:blue", marker="o", markersize=3, label="greedy evaluation")
    if status.get("random"):
        axes.axhline(status["random"]["mean"], color="tab:gray", linestyle="--", label="random policy")
    axes.set_title(f"{status['job']}: {len(records)} rounds in {records[-1].ended_s - start_s:.1f} s")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    target = folder / "curve.png"
    figure.savefig(target, dpi=120)
    return target
