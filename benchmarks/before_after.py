"""Draws one level before and after a training: `python benchmarks/before_after.py RUN OUT.gif`.

The level is the first held-out one that the warm start loses and the final policy wins.
"""

import sys
import textwrap
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import Trajectory

SIDE, GAP, HEAD, FOOT = 300, 24, 40, 98
"""Pixels: a frame's side, between the two, above and below them."""
BACKGROUND, TEXT, GOOD, BAD = "white", "#24292f", "#1a7f37", "#cf222e"


def draw(run: Path, out: Path) -> None:
    """Writes the moving picture."""
    batches = [TrajectoryBatch.load(run / "evaluations" / name) for name in ("warm_start", "final")]
    before, after = ({t.seed: t for t in batch.trajectories} for batch in batches)
    seed = next(s for s, t in before.items() if not t.success and after[s].success)
    episodes = before[seed], after[seed]
    pngs = batches[0].images | batches[1].images
    length = 1 + max(len(episode.turns) for episode in episodes)
    pictures = [_frame(episodes, pngs, number) for number in range(length)]
    pictures[0].save(
        out,
        save_all=True,
        append_images=pictures[1:],
        duration=[1400] * (length - 1) + [3000],
        loop=0,
        optimize=True,
    )
    print(f"{out}: seed {seed}, {out.stat().st_size / 1024:.0f} KB")


def _frame(episodes: Sequence[Trajectory], pngs: dict[str, bytes], number: int) -> Image.Image:
    """Both episodes at a moment; one that has ended stands still."""
    canvas = Image.new("RGB", (2 * SIDE + 3 * GAP, HEAD + SIDE + FOOT), BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    large, small = ImageFont.load_default(20), ImageFont.load_default(15)
    for column, (title, episode) in enumerate(zip(("before", "after"), episodes, strict=True)):
        left, turns = GAP + column * (SIDE + GAP), episode.turns
        shown = episode.rows[0].images
        picture = Image.open(BytesIO(pngs[shown[min(number, len(shown) - 1)]])).convert("RGB")
        canvas.paste(picture.resize((SIDE, SIDE), Image.Resampling.NEAREST), (left, HEAD))
        pen.text((left, 10), f"{title} training", TEXT, large)
        over = number >= len(turns)
        turn = turns[min(number, len(turns) - 1)].parsed
        end = "arrived" if episode.success else "lost"
        said = [*textwrap.wrap(f"sees: {turn.observation}", 42)[:2], f"does: {turn.answer}"]
        lines = [end] if over else said
        colour = TEXT if not over else GOOD if episode.success else BAD
        for n, line in enumerate(lines):
            pen.text((left, HEAD + SIDE + 8 + 22 * n), line, colour, large if over else small)
    return canvas


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
