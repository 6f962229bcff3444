"""A moving picture of one level, played before and after a training."""

import textwrap
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Trajectory
from vagen.storage import write_whole

SIDE, GAP, HEAD, FOOT = 300, 24, 40, 98
"""Pixels: a frame's side, between the two, above and below them."""
BACKGROUND, TEXT, GOOD, BAD = "white", "#24292f", "#1a7f37", "#cf222e"


class NothingToShowError(ValueError):
    """No level can be drawn."""


def draw_before_after(
    before: TrajectoryBatch, after: TrajectoryBatch, path: Path, *, seed: int | None = None
) -> int:
    """Writes a GIF of a level as both batches played it.

    Args:
        before: Episodes before the training.
        after: Episodes of the same levels after it.
        path: The file to write; it appears whole.
        seed: The level's; None for the first that is lost before and won after.

    Returns:
        The level's seed.

    Raises:
        NothingToShowError: There is no such level, or it has no frames.
    """
    old, new = ({t.seed: t for t in batch.trajectories} for batch in (before, after))
    if seed is None:
        won = (s for s, t in old.items() if s in new and not t.success and new[s].success)
        seed = next(won, None)
        if seed is None:
            raise NothingToShowError(
                "there is no level that was lost before and is won after: name one by --level"
            )
    elif seed not in old or seed not in new:
        raise NothingToShowError(f"level {seed} was not played before and after: {_some(old)}")
    episodes, pngs = (old[seed], new[seed]), before.images | after.images
    shown = [_frames(episode) for episode in episodes]
    if not all(shown):
        raise NothingToShowError(f"level {seed} was played in text: there are no frames to draw")
    pictures = [
        _picture(episodes, [[pngs[name] for name in names] for names in shown], number)
        for number in range(1 + max(len(episode.turns) for episode in episodes))
    ]
    with write_whole(path) as partial:
        pictures[0].save(
            partial,
            format="GIF",
            save_all=True,
            append_images=pictures[1:],
            duration=[1400] * (len(pictures) - 1) + [3000],
            loop=0,
            optimize=True,
        )
    return seed


def _some(levels: dict[int, Trajectory]) -> str:
    names = ", ".join(map(str, sorted(levels)[:8]))
    return f"there are {names}" + (" ..." if len(levels) > 8 else "")


def _frames(episode: Trajectory) -> list[str]:
    """The last frame of each turn, and that of the end if it was seen."""
    frames = [turn.images[-1] for turn in episode.turns if turn.images]
    last = episode.rows[-1].images[-1:] if episode.rows else []
    return frames + [name for name in last if frames and name != frames[-1]]


def _picture(
    episodes: Sequence[Trajectory], frames: Sequence[Sequence[bytes]], number: int
) -> Image.Image:
    """Both episodes at a moment; one that has ended stands still."""
    canvas = Image.new("RGB", (2 * SIDE + 3 * GAP, HEAD + SIDE + FOOT), BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    large, small = ImageFont.load_default(20), ImageFont.load_default(15)
    columns = zip(("before", "after"), episodes, frames, strict=True)
    for column, (title, episode, shown) in enumerate(columns):
        left, turns = GAP + column * (SIDE + GAP), episode.turns
        picture = Image.open(BytesIO(shown[min(number, len(shown) - 1)])).convert("RGB")
        scaled = ImageOps.pad(picture, (SIDE, SIDE), Image.Resampling.NEAREST, BACKGROUND)
        canvas.paste(scaled, (left, HEAD))
        pen.text((left, 10), f"{title} training", TEXT, large)
        if number >= len(turns):
            end, colour = ("won", GOOD) if episode.success else ("lost", BAD)
            pen.text((left, HEAD + SIDE + 8), end, colour, large)
            continue
        parsed = turns[number].parsed
        sees = f"sees: {parsed.observation or parsed.reasoning or '-'}"
        said = [*textwrap.wrap(sees, 42)[:2], f"does: {parsed.answer or 'no action'}"]
        for n, line in enumerate(said):
            pen.text((left, HEAD + SIDE + 8 + 22 * n), line, TEXT, small)
    return canvas
