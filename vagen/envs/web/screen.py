"""A page on a screen, exactly: where its elements are, what input does, what an expert would do.

The same events reach `Screen.handle` from a browser (`vagen.envs.web.browser`) and from
`Screen.act`, which does without one.
"""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from vagen.envs.web.application import App, Goal, Kind, Line, Step, View, button, go_back
from vagen.envs.web.forms import FORMS
from vagen.envs.web.offices import OFFICES

KINDS: dict[str, Kind] = {kind.name: kind for kind in (*FORMS, *OFFICES)}
LINE = 32
"""Height of a line in pixels."""
BAR = 12
"""Width of a scroll bar in pixels."""
KEYS = ("Enter", "Tab", "Escape", "Backspace")
KEPT = ("app", "goal", "focus", "selected", "scroll", "over")
"""Attributes of a screen that its state has under their own names."""

Element = dict[str, Any]
"""`role`, `name` and `box` ([left, top, width, height] in pixels); `id` if it can be used; `value`
and `group` if it has them."""

Event = list[Any]
"""`["focus", id or None]`, `["press", id]`, `["drop", id, id]`, `["input", id, value]`, `["key",
name]`, `["scroll", 1 or -1]`, `["back"]`, `["wait"]` or `["done"]`."""


class Action(NamedTuple):
    """An action with points in pixels."""

    verb: str
    """`click`, `drag`, `type`, `key`, `scroll`, `back`, `wait` or `done`."""
    points: tuple[tuple[int, int], ...] = ()
    text: str = ""


@dataclass
class Screen:
    """An application with the focus and the scroll position of its page."""

    kind: Kind
    app: App
    goal: Goal
    width: int
    height: int
    focus: str | None = None
    """Id of the text field with the cursor."""
    selected: bool = False
    """Whether its text is selected, so that typing replaces it."""
    scroll: int = 0
    """First row that is shown of the list."""
    over: bool = False
    """Whether the agent said that it is done."""

    @cached_property
    def _view(self) -> View:
        return self.kind.view(self.app)

    @property
    def room(self) -> int:
        """Number of rows of the list that are shown at once."""
        fixed = 1 + (self._view.top is not None) + bool(self._view.buttons)
        return self.height // LINE - fixed

    @cached_property
    def elements(self) -> list[Element]:
        """All elements that are in sight, from the top."""
        view, room = self._view, self.room
        rows = view.rows[self.scroll : self.scroll + room]
        wide = self.width - BAR if len(view.rows) > room else self.width
        title: Line = [{"role": "title", "name": view.title, "share": 1}]
        if self.app["note"]:
            title.append({"role": "note", "name": self.app["note"], "share": 2})
        head: list[Line] = [title, *([view.top] if view.top else [])]
        placed = [(at, line, self.width) for at, line in enumerate(head)]
        placed += [(at, line, wide) for at, line in enumerate(rows, len(head))]
        if foot := [button(name) for name in view.buttons]:
            placed.append((self.height // LINE - 1, foot, self.width))
        found = [element for at, line, width in placed for element in _placed(line, at, width)]
        if wide < self.width:
            shown = f"{self.scroll + 1} to {self.scroll + len(rows)} of {len(view.rows)}"
            box = [wide, LINE * len(head), BAR, LINE * room]
            found.append({"role": "scrollbar", "name": "rows", "value": shown, "box": box})
        return found

    @property
    def usable(self) -> list[Element]:
        """Elements in sight that can be used; their marks are 1, 2, ..."""
        return [element for element in self.elements if "id" in element]

    def at(self, x: int, y: int) -> Element | None:
        """The usable element at a point."""
        for element in self.usable:
            left, top, width, height = element["box"]
            if left <= x < left + width and top <= y < top + height:
                return element
        return None

    def act(self, action: Action) -> None:
        """Does what a browser with this page does for an action."""
        verb, focus = action.verb, self.focus
        if verb in ("click", "drag"):
            first, last = (self.at(*point) for point in (action.points[0], action.points[-1]))
            self.handle(["focus", first["id"] if first and first["role"] == "textbox" else None])
            if first and first is last:
                self.handle(["press", first["id"]])
            elif first and last:
                self.handle(["drop", first["id"], last["id"]])
        elif verb == "type" and focus:
            before = "" if self.selected else self.app["values"][focus]
            self.handle(["input", focus, before + action.text])
        elif verb == "key" and action.text == "Backspace":
            if focus and (before := self.app["values"][focus]):
                self.handle(["input", focus, "" if self.selected else before[:-1]])
        elif verb == "key":
            self.handle(["key", action.text])
        elif verb == "scroll":
            self.handle(["scroll", 1 if action.text == "down" else -1])
        elif verb != "type":
            self.handle([verb])

    def handle(self, event: Event) -> None:
        """Changes the state as an event does."""
        name, *rest = event
        app, before = self.app, (self.app["page"], self.app.get("open"))
        roles = {element["id"]: element["role"] for element in self.usable}
        match name:
            case "focus":
                self.focus, self.selected = rest[0], rest[0] is not None
            case "input":
                app["values"][rest[0]], self.selected = rest[1], False
            case "press":
                self._press(rest[0], roles.get(rest[0]))
            case "drop" if roles.get(rest[0]) == "card":
                app["note"] = ""
                self.kind.drop(app, rest[0], rest[1])
            case "key" if rest[0] == "Escape":
                self.focus = None
            case "key" if rest[0] == "Tab":
                fields = [each for each, role in roles.items() if role == "textbox"]
                at = fields.index(self.focus) + 1 if self.focus in fields else 0
                self.focus, self.selected = (
                    (fields[at % len(fields)], True) if fields else (None, False)
                )
            case "key" if rest[0] == "Enter" and self.focus and self._view.buttons:
                self._press(self._view.buttons[0], "button")
            case "scroll":
                self.scroll += rest[0] * max(1, self.room - 1)
            case "back":
                go_back(app)
            case "wait":
                self.kind.wait(app)
            case "done":
                self.over = True
        self._show_again(before != (app["page"], app.get("open")))

    def _press(self, target: str, role: str | None) -> None:
        self.app["note"] = ""
        values = self.app["values"]
        if role == "checkbox":
            values[target] = not values[target]
        elif role == "radio":
            key, _, option = target.partition("=")
            values[key] = option
        elif role not in (None, "textbox", "zone"):
            self.kind.press(self.app, target)

    def _show_again(self, turned: bool) -> None:
        vars(self).pop("_view", None)
        vars(self).pop("elements", None)
        if turned:
            self.scroll = 0
        self.scroll = max(0, min(self.scroll, len(self._view.rows) - self.room))
        fields = [each["id"] for each in self.usable if each["role"] == "textbox"]
        self.focus = self.focus if self.focus in fields else None
        self.selected = self.selected and self.focus is not None

    def plan(self) -> list[Step] | None:
        """Steps that are left; none at success, None if it is impossible."""
        return self.kind.plan(self.app, self.goal)

    def next_action(self, step: Step) -> Action:
        """The first action of a step, which may be to scroll to its element."""
        verb, *rest = step
        if verb in ("back", "wait"):
            return Action(verb)
        # A click on a field selects the text that is to be replaced.
        is_ready = self.selected or self.app["values"].get(self.focus) == ""
        if verb == "fill" and self.focus == rest[0] and is_ready:
            return Action("type", text=rest[1])
        boxes = {element["id"]: element for element in self.usable}
        points = []
        for target in rest[: 2 if verb == "drag" else 1]:
            if target not in boxes:
                lines = [[widget.get("id") for widget in line] for line in self._view.rows]
                at = next(at for at, ids in enumerate(lines) if target in ids)
                return Action("scroll", text="up" if at < self.scroll else "down")
            points.append(middle(boxes[target]))
        return Action("drag" if verb == "drag" else "click", tuple(points))

    def copy(self) -> "Screen":
        """An independent copy."""
        return Screen.of_state(copy.deepcopy(self.to_state()))

    def to_state(self) -> dict[str, Any]:
        """Content as JSON, without the elements."""
        size = [self.width, self.height]
        return {
            "task": self.kind.name,
            "size": size,
            **{name: getattr(self, name) for name in KEPT},
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Screen":
        """Inverse of `to_state`; shares its parts and ignores further ones."""
        width, height = state["size"]
        kept = {name: state[name] for name in KEPT}
        return cls(KINDS[state["task"]], width=width, height=height, **kept)


def _placed(line: Line, at: int, width: int) -> list[Element]:
    """The widgets of a line, which share its width."""
    shares = [widget.get("share", 1) for widget in line]
    edges = [width * sum(shares[:n]) // sum(shares) for n in range(len(line) + 1)]
    return [
        {key: value for key, value in widget.items() if key != "share"}
        | {"box": [left, LINE * at, right - left, LINE]}
        for widget, left, right in zip(line, edges, edges[1:], strict=False)
    ]


def middle(element: Element) -> tuple[int, int]:
    """The middle of an element in pixels."""
    left, top, width, height = element["box"]
    return left + width // 2, top + height // 2


def cost(steps: list[Step]) -> int:
    """Actions of the steps, without scrolling."""
    return sum(2 if step[0] == "fill" else 1 for step in steps)
