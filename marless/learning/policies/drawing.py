"""Draws scenes of an environment as captioned images, and saves them as GIF or PNG. Needs Pillow (`render`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from marless.learning.envs.base import EnvSpaces, Picture, Scene

SIDE_PIXELS, CAPTION_PIXELS = 400, 28
STEP_MS, LAST_MS = 100, 1500
AGENT_RADIUS, LANDMARK_RADIUS = 0.15, 0.05
"""Radii of scenes that have none, in units of the plane: the discs of two agents touch when the agents collide."""
MARGIN = 0.2
SHEET, SHEET_COLUMNS = 9, 3
"""Images of a PNG, evenly spread over the episode, and how many of them are in a row."""
INK, PAPER, GOAL = "#333333", "#ffffff", "#2f9e57"
COLOURS = ("#4a76b8", "#c8504b", "#d99a2b", "#7d5ba6")
"""Colours of agent classes, from the last class to the first, so that adversaries, which come first, differ."""
_SMOOTH = 2
"""Factor by which scenes are drawn larger and then reduced, for smooth edges."""


def draw(pictures: Sequence[Picture], captions: Sequence[str], spaces: EnvSpaces) -> list[Image.Image]:
    """One image per picture. All scenes show the same square of the plane, which contains all positions."""
    scenes = [picture for picture in pictures if isinstance(picture, Scene)]
    reach = max([1.0, *(float(np.abs([*s.agents, *s.landmarks]).max()) for s in scenes)]) + MARGIN
    drawn = [_scene(p, reach, spaces) if isinstance(p, Scene) else Image.fromarray(p) for p in pictures]
    return [_captioned(image, caption) for image, caption in zip(drawn, captions, strict=True)]


def save(images: Sequence[Image.Image], path: Path) -> None:
    """Write a looping GIF, which shows its last image longer; raises OSError."""
    durations = [STEP_MS] * (len(images) - 1) + [LAST_MS]
    images[0].save(path, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)


def save_sheet(images: Sequence[Image.Image], path: Path) -> None:
    """Write a PNG of the first image, the last one and some between; raises OSError."""
    chosen = [images[i] for i in np.unique(np.linspace(0, len(images) - 1, SHEET).round().astype(int))]
    width, height = chosen[0].size
    columns = min(len(chosen), SHEET_COLUMNS)
    sheet = Image.new("RGB", (columns * width, -(-len(chosen) // columns) * height), PAPER)
    for i, image in enumerate(chosen):
        sheet.paste(image, (i % columns * width, i // columns * height))
    sheet.save(path, format="PNG")


def pixel(place: NDArray[np.float64], reach: float) -> tuple[float, float]:
    """Pixel coordinates of a point of the plane, in an image of SIDE_PIXELS that shows ±`reach` around the origin."""
    scale = SIDE_PIXELS / (2 * reach)
    return (reach + float(place[0])) * scale, (reach - float(place[1])) * scale


def _scene(scene: Scene, reach: float, spaces: EnvSpaces) -> Image.Image:
    image = Image.new("RGB", (SIDE_PIXELS * _SMOOTH, SIDE_PIXELS * _SMOOTH), PAPER)
    canvas = ImageDraw.Draw(image)
    sizes = [len(agents.agents) for agents in spaces.classes]
    colours = [COLOURS[-k % len(COLOURS)] for k in range(1 - len(sizes), 1) for _ in range(sizes[k - 1])]
    goals = () if scene.goal is None else (scene.goal,)
    colours += [GOAL if any(np.array_equal(place, goal) for goal in goals) else INK for place in scene.landmarks]
    places, radii = np.concatenate([scene.agents, scene.landmarks]), scene.radii
    if radii is None:
        radii = np.repeat([AGENT_RADIUS, LANDMARK_RADIUS], [len(scene.agents), len(scene.landmarks)])
    for k in np.argsort(-radii, kind="stable"):  # the largest first, so that no disc is covered wholly
        x, y = (_SMOOTH * coordinate for coordinate in pixel(places[k], reach))
        radius = _SMOOTH * float(radii[k]) * SIDE_PIXELS / (2 * reach)
        canvas.circle((x, y), radius, fill=colours[k], outline=PAPER, width=_SMOOTH)
    return image.resize((SIDE_PIXELS, SIDE_PIXELS), Image.Resampling.LANCZOS)


def _captioned(image: Image.Image, caption: str) -> Image.Image:
    framed = Image.new("RGB", (image.width, image.height + CAPTION_PIXELS), PAPER)
    framed.paste(image, (0, 0))
    text = ImageDraw.Draw(framed)
    font = ImageFont.load_default(size=CAPTION_PIXELS // 2)
    text.text((8, image.height + CAPTION_PIXELS // 2), caption, fill=INK, font=font, anchor="lm")
    return framed
