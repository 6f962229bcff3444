"""Web as an environment, its options, its actions, and its claims: page, values, places, cursor."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, model_validator

from vagen.envs.base import State
from vagen.envs.claims import Claim
from vagen.envs.config import EnvConfig
from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, split_of
from vagen.envs.parsing import ActionReader
from vagen.envs.turns import TurnEnv
from vagen.envs.web.application import WORDS, Task, new_app, pick, swaps
from vagen.envs.web.browser import Page, browser
from vagen.envs.web.screen import KEYS, KINDS, Action, Screen, cost, middle

ResultT = TypeVar("ResultT")

WITHIN_X, WITHIN_Y = 40, 16
"""Tolerance of places, in the units of actions."""
AHEAD = 3
"""Number of steps whose places are described."""


def _plain(said: str) -> str:
    """Words and numbers of a name or value, without those between claims."""
    words = re.findall(r"[a-z0-9]+", said.lower())
    left = (word for word in words if word not in ("a", "an", "and", "is", "the"))
    return " ".join(left) or "empty"


@cache
def _vocabulary() -> set[str]:
    """Words of all applications, also misspelt."""
    words = set(re.findall(r"[a-z0-9]+", json.dumps(vars(WORDS))))
    return words | {swap for word in " ".join(WORDS.sentences).split() for swap in swaps(word)}


def _named(said: str) -> str:
    """A name or value as a true text has it: what an agent made up is `other`."""
    known, words = _vocabulary() | {""}, _plain(said).split()[:8]
    return " ".join(each if each.rstrip("0123456789") in known else "other" for each in words)


def _known(said: str) -> str:
    """The same; a text cannot hide anything else where a name or value stands."""
    if (named := _named(said)) != said:
        raise ValueError(f"{said!r} has words of no application: say {named!r}")
    return said


Words = Annotated[
    str,
    BeforeValidator(_plain),
    AfterValidator(_known),
    Field(pattern="^[a-z0-9][a-z0-9 ]*?$", description="as on the page"),
]


class Shows(Claim):
    """The page that is open."""

    phrase = "page is {page}"
    page: Words


class Holds(Claim):
    """The content of a field, of a choice, whether a checkbox is on, or the page's note."""

    phrase = "{field} holds {value}"
    subject = ("field",)
    field: Words
    value: Words


class At(Claim):
    """Middle of something that the next steps need, in the units of actions."""

    phrase = "{name} at ({x}, {y})"
    subject = ("name",)
    name: Words
    x: int
    y: int

    def agreement(self, true: Claim) -> float:
        """Whether it is within the tolerance."""
        assert isinstance(true, At)
        is_near = abs(self.x - true.x) <= WITHIN_X and abs(self.y - true.y) <= WITHIN_Y
        return float(self.name == true.name and is_near)


class Marked(Claim):
    """Mark of something that the next steps need."""

    phrase = "{name} has mark {mark}"
    subject = ("name",)
    name: Words
    mark: int


class Cursor(Claim):
    """The text field with the cursor."""

    phrase = "cursor in {field}"
    field: Words


TaskName = Literal[
    "press", "form", "login", "wizard", "settings", "spelling",
    "shop", "mail", "calendar", "table", "files", "map", "board",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class WebLevel:
    """A task of a kind; its parts must not be changed."""

    kind: TaskName
    task: Task
    level_hash: str


class WebConfig(EnvConfig):
    """Options of Web."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "progress": 2.0, "success": 10.0, "harm": -1.0},
        "vagen-new": {"format": 0.02, "progress": 0.2, "success": 1.0, "harm": -0.1},
    }
    notations = ("natural",)

    tasks: tuple[TaskName, ...] = get_args(TaskName)
    """Kinds of tasks, equally probable."""
    difficulty: tuple[int, int] = (1, 3)
    """Least and greatest level, from 1 to 3."""
    width: int = Field(448, ge=160, le=1024)
    """Page width in CSS pixels."""
    height: int = Field(320, ge=160, le=1024)
    """Page height; a line takes 32."""
    scale: float = Field(1.0, ge=0.5, le=3.0)
    """Picture pixels per CSS pixel."""
    targets: Literal["pixels", "thousandths", "marks"] = "pixels"
    """Places in actions: pixels or thousandths of the picture, or marks, as in text mode."""
    finish: Literal["auto", "done"] = "auto"
    """What ends an episode: success, or `done()`."""
    max_actions_per_step: PositiveInt = 3
    """Maximum actions in one response."""
    action_sep: str = "|"
    """Separator of actions."""
    max_steps: PositiveInt = 30
    """Actions until truncation."""

    @model_validator(mode="after")
    def _fits_the_page(self) -> "WebConfig":
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ValueError("tasks: name each kind once, and at least one")
        least, most = self.difficulty
        if not 1 <= least <= most <= 3:
            raise ValueError(f"difficulty is [least, most] from 1 to 3; got [{least}, {most}]")
        for task in self.tasks:
            if self.width < (least := KINDS[task].least_width):
                raise ValueError(f"task {task} needs a width of at least {least}; got {self.width}")
        return self

    @property
    def by_marks(self) -> bool:
        """Whether actions name places by numbers."""
        return self.targets == "marks" or self.render_mode == "text"

    @property
    def picture_side(self) -> int:
        """Longer side of the picture in pixels."""
        return round(max(self.width, self.height) * self.scale)


def _example() -> State:
    """A form on the smallest page, with fields that no task has: a text may not copy the prompt."""
    app = new_app("form", order=["nickname", "parcel"], sent=[], limit=None)
    app["values"] = {"nickname": "", "parcel": False}
    screen = Screen(KINDS["form"], app, {"values": {"nickname": "other", "parcel": True}}, 160, 160)
    asked = "Fill in: nickname other, parcel on; leave the rest. Send."
    state = {"env_name": "Web", "instruction": asked, **screen.to_state()}
    return {**state, "elements": screen.elements}


class WebEnv(TurnEnv):
    """Do a task in a small web application, in a real browser, by mouse and keyboard."""

    env_name: ClassVar[str] = "Web"
    config_class: ClassVar[type[WebConfig]] = WebConfig
    calibration_options: ClassVar[tuple[dict[str, Any], ...]] = ({"finish": "done"},)
    difficulty_name = "actions of the expert, without scrolling"
    needs_process: ClassVar[bool] = True
    claims: ClassVar[tuple[type[Claim], ...]] = (Shows, Holds, At, Marked, Cursor)
    example_state: ClassVar[State] = _example()

    config: WebConfig
    _drawing: object = None
    """What the page shows that was drawn last for it."""

    @classmethod
    def sample_level(cls, config: WebConfig, seed: int, split: Split) -> WebLevel:
        """The task of `reset(seed=seed)` in this split."""
        rng, (least, most) = Random(seed), config.difficulty
        for _ in range(MAX_CANDIDATES):
            kind = pick(rng, config.tasks)
            task = KINDS[kind].make(rng, pick(rng, range(least, most + 1)))
            digest = content_hash(json.dumps(["Web", kind, task.app, task.goal, task.instruction]))
            if split_of(digest) == split:
                return WebLevel(kind, task, digest)
        raise LevelError(f"Web: no task of these kinds is in split {split!r}; allow more kinds")

    @classmethod
    def difficulty(cls, level: WebLevel) -> tuple[float, ...]:
        """Actions of the expert, without scrolling."""
        return (cost(KINDS[level.kind].plan(level.task.app, level.task.goal) or []),)

    @classmethod
    def claims_of(cls, config: WebConfig) -> tuple[type[Claim], ...]:
        """Places by marks or by coordinates."""
        unused = At if config.by_marks else Marked
        return tuple(kind for kind in cls.claims if kind is not unused)

    @classmethod
    def truth(cls, state: State, config: WebConfig) -> list[Claim]:
        """Page, values in sight, places of what the next steps need, cursor."""
        steps = KINDS[state["task"]].plan(state["app"], state["goal"]) or []
        needed = {
            target for verb, *rest in steps[:AHEAD] for target in rest[: 2 if verb == "drag" else 1]
        }
        found: list[Claim] = []
        mark = 0
        for each in state["elements"]:
            role, name = each["role"], _named(each["name"])
            mark += "id" in each
            if role == "title":
                found.append(Shows(page=name))
            elif role == "note":
                found.append(Holds(field="note", value=name))
            elif role in ("textbox", "checkbox"):
                found.append(Holds(field=name, value=_named(each["value"])))
            elif role == "radio" and each["value"] == "on":
                found.append(Holds(field=_named(each["group"]), value=name))
            if each.get("id") in needed:
                if config.by_marks:
                    found.append(Marked(name=name, mark=mark))
                else:
                    (x, y), (wide, high) = middle(each), _pixels(config, *state["size"])
                    found.append(At(name=name, x=round(x / wide), y=round(y / high)))
            if each.get("id") == state["focus"] is not None:
                found.append(Cursor(field=name))
        return list({claim.topic(): claim for claim in reversed(found)}.values())[::-1]

    @classmethod
    def distance(cls, state: State) -> float | None:
        """Actions to success, without scrolling; None if something cannot be undone."""
        steps = KINDS[state["task"]].plan(state["app"], state["goal"])
        return None if steps is None else float(cost(steps))

    def _frame_size(self) -> tuple[int, int]:
        scale = self.config.scale
        return round(self.config.height * scale), round(self.config.width * scale)

    def _action_reader(self) -> ActionReader:
        config, (height, width) = self.config, self._frame_size()
        most = (1000, 1000) if config.targets == "thousandths" else (width, height)
        place = r"(\d{1,4})" if config.by_marks else r"(\d{1,4})\s*,\s*(\d{1,4})"
        forms = {"click": place, "drag": rf"{place}\s*,\s*{place}", "type": ".{1,80}"}
        forms |= {"key": "|".join(KEYS), "scroll": "down|up", "back": "", "wait": ""}
        forms |= {"done": ""} if config.finish == "done" else {}

        def read(written: str) -> str | None:
            verb, _, rest = (part.strip() for part in written.partition("("))
            verb, rest, end = verb.lower(), rest[:-1].strip(), rest[-1:]
            inside = re.fullmatch(forms.get(verb, "(?!)"), rest.strip("\"'"), re.IGNORECASE)
            if end != ")" or inside is None or not rest.isprintable():
                return None
            numbers = [int(each) for each in inside.groups()]
            if not config.by_marks and any(n > most[at % 2] for at, n in enumerate(numbers)):
                return None
            said = inside[0] if verb == "type" else inside[0].capitalize()
            said = said.lower() if verb == "scroll" else said
            return f"{verb}({','.join(map(str, numbers)) or said})"

        return read

    def _meant(self, screen: Screen, written: str) -> Action | None:
        """A read action with points in CSS pixels; None if it names a mark that is not there."""
        verb, _, rest = written.removesuffix(")").partition("(")
        if verb not in ("click", "drag"):
            return Action(verb, text=rest)
        numbers = [int(each) for each in rest.split(",")]
        if self.config.by_marks:
            if not all(0 < number <= len(screen.usable) for number in numbers):
                return None
            return Action(verb, tuple(middle(screen.usable[number - 1]) for number in numbers))
        wide, high = _pixels(self.config, screen.width, screen.height)
        last_x, last_y = screen.width - 1, screen.height - 1
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        points = [(min(int(x * wide), last_x), min(int(y * high), last_y)) for x, y in pairs]
        return Action(verb, tuple(points))

    def _write_action(self, screen: Screen, action: Action) -> str:
        """An action as the agent writes it."""
        numbers: list[int] = []
        for x, y in action.points:
            if self.config.by_marks:
                marks = [each["id"] for each in screen.usable]
                numbers.append(1 + marks.index((screen.at(x, y) or {})["id"]))
            else:
                wide, high = _pixels(self.config, screen.width, screen.height)
                numbers += [round(x / wide), round(y / high)]
        return f"{action.verb}({','.join(map(str, numbers)) or action.text})"

    def any_action(self, chance: Random) -> str:
        """A click on something in sight."""
        if not (usable := self._screen.usable):
            return "wait()"
        click = Action("click", (middle(chance.choice(usable)),))
        return self._write_action(self._screen, click)

    def _load_level(self, level: WebLevel, seed: int) -> None:
        task, size = level.task, (self.config.width, self.config.height)
        self._instruction = task.instruction
        self._screen = Screen(KINDS[level.kind], task.app, task.goal, *size).copy()
        self._start = self._left = cost(self._screen.plan() or [])
        self._refresh()

    def _refresh(self) -> None:
        """Reads the elements of a changed screen, from the browser's document if there is one."""
        self._elements, self._drawing = self._screen.elements, None
        if self.config.render_mode == "vision":
            self._use(lambda page: None)

    def _use(self, work: Callable[[Page], ResultT]) -> ResultT:
        """Calls `work` with a page of the browser that shows the screen."""
        config = self.config

        def shown(page: Page) -> ResultT:
            if self._drawing is None or page.shown is not self._drawing:
                self._drawing = object()
                self._elements = page.draw(self._screen, self._drawing, marks=config.by_marks)
            return work(page)

        size = (config.width, config.height, config.scale)
        return browser().use(size, self._drawing, shown)

    def _move(self, action: str) -> tuple[float, bool]:
        screen = self._screen
        meant = self._meant(screen, action)
        if meant is not None:
            if self.config.render_mode == "text":
                screen.act(meant)
            else:
                for event in self._use(lambda page: page.act(meant)):
                    screen.handle(event)
            self._refresh()
        steps = screen.plan()
        if steps is None:
            return self._rewards["harm"], True
        left = cost(steps)
        # What is undone and done again is not paid again.
        reward = self._rewards["progress"] * max(self._left - left, 0) / self._start
        self._left = min(self._left, left)
        if self._is_won():
            return reward + self._rewards["success"], True
        return reward, screen.over

    def _is_won(self) -> bool:
        return self._screen.plan() == [] and (self.config.finish == "auto" or self._screen.over)

    def _read_state(self) -> State:
        state = {"env_name": self.env_name, "instruction": self._instruction}
        return state | self._screen.copy().to_state() | {"elements": self._elements}

    def _plan(self, count: int, screen: Screen | None = None) -> list[str]:
        """Optimal actions from a screen; none for what is not in sight at its start."""
        screen, found = (screen or self._screen).copy(), list[str]()

        def layout() -> list[Any]:
            return [(each["id"], each["box"]) for each in screen.usable]

        shown = layout()
        while len(found) < count and layout() == shown:
            steps = screen.plan()
            if not steps:
                found += ["done()"] if self.config.finish == "done" and not screen.over else []
                break
            action = screen.next_action(steps[0])
            found.append(self._write_action(screen, action))
            screen.act(action)
        return found or ["wait()"]

    def _after(self, state: State, actions: list[str]) -> State:
        screen = Screen.of_state(state).copy()
        for action in actions:
            if (meant := self._meant(screen, action)) is not None:
                screen.act(meant)
        return {**state, **screen.to_state(), "elements": screen.elements}

    def _reason(self, actions: list[str]) -> str:
        return " then ".join(actions)

    def picture(self) -> NDArray[np.uint8]:
        """The page in the browser, uint8 [height, width, 3] in pixels of the picture."""
        return self._use(Page.picture)

    def text_view(self) -> str:
        """The elements from the top, a line of the page in a line, with the marks of actions."""
        lines: dict[int, list[str]] = {}
        mark = 0
        for each in self._state["elements"]:
            role = "" if each["role"] in ("text", "title") else f"{each['role']} "
            words = f"{role}{each['name']}"
            if "id" in each:
                mark += 1
                words = f"[{mark}] {words}"
            if each.get("value") is not None:
                words += f" = {each['value'] or 'empty'}"
            if each.get("id") == self._state["focus"] is not None:
                words += " (cursor)"
            lines.setdefault(each["box"][1], []).append(words)
        return "\n".join(" ; ".join(line) for _, line in sorted(lines.items()))

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        shown, images = super()._shown()
        return f"Task: {self._state['instruction']}\n{shown}", images

    def example_response(self) -> str:
        """A response in the configured layout that is true for `example_state`."""
        screen = Screen.of_state(self.example_state)
        actions = self._plan(self.config.max_actions_per_step, screen)
        return self._write(actions, self.example_state, self._after(self.example_state, actions))

    def _state_rule(self) -> str:
        where = "the mark" if self.config.by_marks else "the middle"
        return (
            "Describe a state by the page, by what each field, choice and checkbox in sight holds, "
            f"by {where} of what the next {AHEAD} steps need, and by the field with the cursor, if "
            f"any; such as: {self.state_text(self.example_state)}"
        )

    def _rules(self) -> str:
        config = self.config
        height, width = self._frame_size()
        if config.by_marks:
            click, drag = "click(MARK)", "drag(MARK,MARK)"
            where = "MARK is the number of what is meant, as it is shown."
        else:
            click, drag = "click(X,Y)", "drag(X,Y,X,Y)"
            units = f"pixels of the picture, {width} wide and {height} high"
            if config.targets == "thousandths":
                units = "thousandths of the picture's width and height"
            where = f"X, to the right, and Y, downwards, are {units}."
        over = "The episode ends when the task is done."
        if config.finish == "done":
            over = "done() says that the task is done, and ends the episode."
        return (
            "You do a task in a web application by mouse and keyboard. Do nothing that the task "
            "does not ask for: some of it cannot be undone.\n"
            f"Actions: {click}, {drag}, type(TEXT), key(NAME), scroll(down), scroll(up), back(), "
            f"wait(). {where} A click on a text field selects its text, which typing replaces. "
            f"NAME is {', '.join(KEYS[:-1])} or {KEYS[-1]}. scroll moves a list that is longer "
            f"than its place; back opens the page before; wait lets time pass. {over}"
        )

    def _brief_rules(self) -> str:
        where = "mark" if self.config.by_marks else "x,y"
        over = " , done()" if self.config.finish == "done" else ""
        return f"do the task . actions : click({where}) , type(text) , scroll(down) , back(){over}"


def _pixels(config: WebConfig, width: int, height: int) -> tuple[float, float]:
    """CSS pixels of a unit of actions, to the right and downwards."""
    if config.targets == "thousandths":
        return width / 1000, height / 1000
    return 1 / config.scale, 1 / config.scale
