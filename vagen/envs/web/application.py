"""What an application is: a state, pages of widgets that show it, and what a press changes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import yaml

from vagen.envs.levels import draw_index

ItemT = TypeVar("ItemT")

WORDS = SimpleNamespace(
    **yaml.safe_load(resources.files("vagen.envs.web").joinpath("words.yaml").read_text())
)
"""What the applications are about."""

App = dict[str, Any]
"""State of an application, JSON: `page`, `past` (pages to go back to, each with the id of what was
pressed there), `note` (its message),
`values` (of fields: text, of checkboxes: bool, of choices: one of their `options`), and the kind's
own."""

Goal = dict[str, Any]
"""What a task asks for, JSON."""

Step = tuple[str, ...]
"""`("click", id)`, `("fill", id, text)`, `("drag", id, id)`, `("back",)` or `("wait",)`."""

Widget = dict[str, Any]
"""`role`, `name` and, if it can be used, `id`; optionally `value`, `group`, `share`."""

Line = list[Widget]
"""Widgets side by side, whose `share` of the width is 1 unless given."""


@dataclass(frozen=True, slots=True)
class View:
    """A page: a list that scrolls, and what stays above and below it."""

    title: str
    rows: list[Line]
    buttons: tuple[str, ...] = ()
    """Buttons at the bottom; Enter in a text field presses the first."""
    top: Line | None = None
    """Line above the list."""


@dataclass(frozen=True, slots=True)
class Task:
    """A generated task."""

    app: App
    goal: Goal
    instruction: str


class Kind(ABC):
    """A kind of task: generates applications, shows them, and knows what is left to do."""

    name: ClassVar[str]
    least_width: ClassVar[int] = 160
    """Width in pixels below which its labels are cut off."""

    @abstractmethod
    def make(self, rng: Random, level: int) -> Task:
        """A task of a level of difficulty: 1, 2 or 3."""

    @abstractmethod
    def view(self, app: App) -> View:
        """The page that shows a state; names of what can be used are unique on it."""

    def press(self, app: App, target: str) -> None:  # noqa: B027
        """Changes `app` as a press of `target` does, other than a checkbox or a choice."""

    def drop(self, app: App, moved: str, target: str) -> None:  # noqa: B027
        """Changes `app` as dropping `moved` on `target` does."""

    def wait(self, app: App) -> None:  # noqa: B027
        """Changes `app` as time does."""

    @abstractmethod
    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Steps to success, undoing what is wrong: none at success; None if it is impossible."""


def new_app(page: str, **more: Any) -> App:
    """A state whose application shows `page`."""
    return {"page": page, "past": [], "note": "", "values": {}, "options": {}, **more}


def go(app: App, page: str, target: str) -> None:
    """Opens a page, for a press of `target`; `back` returns."""
    app["past"].append([app["page"], target])
    app["page"] = page


def go_back(app: App) -> None:
    """Returns to the page before, if there is one."""
    if app["past"]:
        app["page"], _ = app["past"].pop()


def opened(app: App) -> list[str]:
    """Ids of what was pressed to open the page, from the first page on."""
    return [target for _, target in app["past"]]


def way(here: list[str], there: list[str]) -> list[Step]:
    """Steps from one opened page (`opened`) to another."""
    same = 0
    while here[same : same + 1] == there[same : same + 1] != []:
        same += 1
    return [*[("back",)] * (len(here) - same), *(("click", target) for target in there[same:])]


def offer(app: App, key: str, options: Iterable[str], value: str) -> None:
    """Gives `app` a choice."""
    app["options"][key], app["values"][key] = list(options), value


def text(name: str, share: int = 1) -> Widget:
    """Text that cannot be used."""
    return {"role": "text", "name": name, "share": share}


def button(target: str, name: str | None = None, **more: Any) -> Widget:
    """A button; `role` makes it a link, a card or a pin."""
    return {"id": target, "role": "button", "name": name or target, **more}


def entry(app: App, key: str, **more: Any) -> Line:
    """A line for a value: a choice, a checkbox or a text field."""
    value = app["values"][key]
    if key not in app["options"]:
        role, shown = "textbox", value
        if isinstance(value, bool):
            role, shown = "checkbox", "on" if value else "off"
        return [{"id": key, "role": role, "name": key, "value": shown, **more}]
    line = [text(key)]
    for option in app["options"][key]:
        shown = {"value": "on" if option == value else "off", "group": key}
        line.append({"id": f"{key}={option}", "role": "radio", "name": option, **shown})
    return line


def fixes(app: App, wanted: Mapping[str, Any]) -> list[Step]:
    """Steps that give widgets of one page their wanted values."""
    steps: list[Step] = []
    for key, value in wanted.items():
        if app["values"][key] == value:
            continue
        if key in app["options"]:
            steps.append(("click", f"{key}={value}"))
        elif isinstance(value, bool):
            steps.append(("click", key))
        else:
            steps.append(("fill", key, value))
    return steps


def mend(app: App, jobs: list[tuple[list[str], Goal, Goal | None]]) -> list[Step]:
    """Steps that open pages, give their values as wanted and save them, or delete (None).

    A job is a page (`opened`), the values that it opens with, and those that are wanted.
    """
    here, steps = opened(app), list[Step]()
    for there, values, wanted in sorted(jobs, key=lambda job: job[0] != here):
        done = fixes(app if here == there else app | {"values": values}, wanted or {})
        steps += [*way(here, there), *done, ("click", "save" if wanted else "delete")]
        here = there[:-1]
    return steps


def pick(rng: Random, items: Sequence[ItemT]) -> ItemT:
    """One item."""
    return items[draw_index(rng, len(items))]


def number(rng: Random, least: int, most: int) -> str:
    """A whole number in digits."""
    return str(pick(rng, range(least, most + 1)))


def swaps(word: str) -> list[str]:
    """The word with two different neighbouring letters after the first swapped, in every way."""
    cuts = [at for at in range(1, len(word) - 1) if word[at] != word[at + 1]]
    return [word[:at] + word[at + 1] + word[at] + word[at + 2 :] for at in cuts]


def some(rng: Random, items: Iterable[ItemT], count: int | None = None) -> list[ItemT]:
    """Different items in random order; all if `count` is None."""
    left = list(items)
    return [
        left.pop(draw_index(rng, len(left))) for _ in range(len(left) if count is None else count)
    ]
