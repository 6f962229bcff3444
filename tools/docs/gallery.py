"""The environments in pictures, as Markdown: `python -m tools.docs.gallery docs`.

Each is played in a process of its own: two graphics stacks do not live in one.
"""

import io
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from vagen.envs import make
from vagen.envs.base import IMAGE_PLACEHOLDER
from vagen.envs.registry import ENVIRONMENTS
from vagen.report.environment import Portrait, portray, strip

WIDTH = 720
"""Most pixels of a picture."""
FRAMES = 6
"""Frames of an episode that are shown."""
HEADER = """\
# Gallery

`make gallery` generates this page. For each environment the first picture shows how four levels
begin, the second an episode of the expert. Success is measured on 48 levels, with its 95 %
interval. *Random* draws its answers from all answers of the expert. `vagen env show NAME` makes
such a page for any environment; [Environments](environments.md) describes them.
"""


def main(docs: Path) -> None:
    """Writes `gallery.md` and its pictures below `images/gallery`."""
    pictures = docs / "images" / "gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        sections = pool.map(section, ENVIRONMENTS, [pictures] * len(ENVIRONMENTS))
        (docs / "gallery.md").write_text("\n".join([HEADER, *sections]))


def section(name: str, pictures: Path) -> str:
    """The Markdown of an environment, whose pictures are written."""
    env = make(name, ENVIRONMENTS[name].load().gallery_options)
    try:
        portrait = portray(name, env)
        rules = (type(env).__doc__ or "").splitlines()[0]
    finally:
        env.close()
    slug = name.lower()
    given = ", ".join(f"`{key}: {value}`" for key, value in portrait.options.items())
    lines = [f"## {name}", "", f"{rules} {f'With {given}.' if given else ''}".rstrip(), ""]
    if portrait.levels[0].shown["images"]:
        _write(pictures / f"{slug}-levels.png", [level.shown for level in portrait.levels])
        lines += [f"![{name}: four levels](images/gallery/{slug}-levels.png)", ""]
        if portrait.expert is not None:
            _write(pictures / f"{slug}-expert.png", _spread(portrait))
            lines += [f"![{name}: an expert's episode](images/gallery/{slug}-expert.png)", ""]
    else:
        lines += ["```text", _shown(portrait), "```", ""]
    lines += ["| | success | in |", "|---|---|---|"]
    for success in portrait.successes:
        low, high = success.ci95
        rate = f"{success.wins / success.count:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {success.policy} | {rate} | at most {success.turns} turns |")
    if env.claims:
        lines += ["", f"True at its start: {portrait.levels[0].truth}"]
    return "\n".join([*lines, ""])


def _spread(portrait: Portrait) -> list[Any]:
    """Observations of the expert's episode, `FRAMES` at most: its first and its last among them."""
    assert portrait.expert is not None
    shown, count = portrait.expert.observations, min(FRAMES, len(portrait.expert.observations))
    return [shown[i * (len(shown) - 1) // max(count - 1, 1)] for i in range(count)]


def _shown(portrait: Portrait) -> str:
    return portrait.levels[0].shown["text"].replace(IMAGE_PLACEHOLDER, "")


def _write(path: Path, shown: list[Any]) -> None:
    image = Image.fromarray(strip(shown))
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)))
    content = io.BytesIO()
    image.quantize(64).save(content, format="PNG", optimize=True)
    path.write_bytes(content.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
