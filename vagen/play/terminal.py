"""A game in the terminal: frames as half blocks, answers by name."""

import asyncio
import io
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from vagen.play.agents import Agent
from vagen.play.game import Game, Shown
from vagen.play.server import PERSON, free_folder

HELP = (
    "an action or its number; several with {sep!r} between; a: {agent} takes the turn; "
    "A: it plays to the end; t: show or hide what is true; l N: level N; q: quit"
)


def blocks(png: bytes, columns: int) -> str:
    """A picture as half blocks in 24-bit colours: two pixels a character."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    columns = min(columns, image.width)
    rows = max(2, round(image.height * columns / image.width) // 2 * 2)
    pixels = np.asarray(image.resize((columns, rows), Image.Resampling.BOX)).tolist()
    lines = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m▀"
            for (r, g, b), (r2, g2, b2) in zip(upper, lower, strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


async def play_here(game: Game, agent: Agent, agent_name: str, level: int, outputs: Path) -> None:
    """Plays until the person quits or the input ends; whole episodes are saved."""
    sep, told = game.about.config.action_sep, False
    print(game.about.system_prompt(), HELP.format(sep=sep, agent=agent_name), sep="\n\n")
    shown, seen, to_end = await game.start(level), 0, False
    while True:
        seen = _print(shown, seen, told)
        if shown.done:
            to_end = False
            print(shown.error or ("won" if shown.success else "not won"), f"{shown.score:+.2f}")
            if game.finished is not None:
                print(game.save(free_folder(outputs, game)))
        line = "a" if to_end else await asyncio.to_thread(_read, game)
        to_end = to_end or line == "A"
        word, _, rest = line.partition(" ")
        if line in ("q", ""):
            await game.close()
            return
        if line == "t":
            told = not told
        elif word == "l" and rest.strip().isdigit():
            shown, seen = await game.start(int(rest)), 0
        elif shown.done:
            shown, seen = await game.start(shown.level + 1), 0
        elif line in ("a", "A"):
            shown = await game.play(await agent(game.asked), agent_name)
        else:
            named = [_action(part.strip(), game.actions) for part in line.split(sep)]
            shown = await game.play(game.write({"answer": f" {sep} ".join(named)}), PERSON)


def _action(word: str, actions: list[str]) -> str:
    if word.isdigit() and 1 <= int(word) <= len(actions):
        return actions[int(word) - 1]
    return next((name for name in actions if name.lower() == word.lower()), word)


def _read(game: Game) -> str:
    names = "  ".join(f"{number} {name}" for number, name in enumerate(game.actions, 1))
    print(f"{names}  a A t l q > " if names else "answer, a A t l q > ", end="", flush=True)
    return sys.stdin.readline().strip("\n") or "q"


def _print(shown: Shown, seen: int, told: bool) -> int:
    """Prints what is new; returns how many steps have been printed."""
    for step in shown.steps[seen:]:
        for section, text in step.sections.items():
            print(f"  {section}: {text}")
        note = "" if step.format_correct else "  (wrong layout: nothing is carried out)"
        print(f"{step.by}: {', '.join(step.actions) or step.answer}  {step.reward:+.2f}{note}")
    columns = max(20, min(64, shutil.get_terminal_size().columns - 2))
    print(f"\nlevel {shown.level}, turn {shown.turn}")
    for png in shown.frames:
        print(blocks(png, columns))
    print(shown.text)
    if told:
        print(f"true: {shown.truth}")
    return len(shown.steps)
