"""Tasks with fields: press a button, fill a form, log in, a wizard, settings, spelling."""

from random import Random

from vagen.envs.web.application import (
    WORDS,
    App,
    Goal,
    Kind,
    Step,
    Task,
    View,
    button,
    entry,
    fixes,
    go,
    go_back,
    new_app,
    number,
    offer,
    opened,
    pick,
    some,
    swaps,
    text,
    way,
)


class Press(Kind):
    """Press one of several buttons; a press of another cannot be taken back."""

    name = "press"

    def make(self, rng: Random, level: int) -> Task:
        """Among eight buttons of eight labels, or eight or ten of twelve."""
        words = some(rng, WORDS.labels[: 8 if level == 1 else None], 10 if level == 3 else 8)
        wanted = pick(rng, words)
        app = new_app("buttons", words=words, pressed=[])
        return Task(app, {"button": wanted}, f"Press {wanted}.")

    def view(self, app: App) -> View:
        """Two buttons a line."""
        buttons = [button(word) for word in app["words"]]
        return View("buttons", [buttons[at : at + 2] for at in range(0, len(buttons), 2)])

    def press(self, app: App, target: str) -> None:
        """Keeps what was pressed."""
        app["pressed"].append(target)

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """One click."""
        if app["pressed"]:
            return [] if app["pressed"] == [goal["button"]] else None
        return [("click", goal["button"])]


class Form(Kind):
    """Fill a form as told and send it once; at level 3 a limit on the page decides a number."""

    name = "form"

    def make(self, rng: Random, level: int) -> Task:
        """Two fields and a checkbox; three, two and a choice; four, two, a choice and a number."""
        keys = some(rng, list(WORDS.texts)[: 2 if level == 1 else None], level + 1)
        wanted: Goal = {key: pick(rng, WORDS.texts[key]) for key in keys}
        values: Goal = dict.fromkeys(keys, "")
        for key in some(rng, WORDS.checks, min(level, 2)):
            values[key], wanted[key] = False, rng.random() < 0.6
        app = new_app("form", values=values, sent=[], limit=None)
        if level > 1:
            key = pick(rng, list(WORDS.choices))
            value, wanted[key] = some(rng, WORDS.choices[key], 2)
            offer(app, key, WORDS.choices[key], value)
        said = [_said(key, value) for key, value in wanted.items() if value is not False]
        if level == 3:
            values["amount"], wanted["amount"] = "", number(rng, 3, 90)
            app["limit"] = int(wanted["amount"])
            said.append("amount the most that the page allows")
        app["order"] = some(rng, values)
        return Task(app, {"values": wanted}, f"Fill in: {', '.join(said)}; leave the rest. Send.")

    def view(self, app: App) -> View:
        """A line for each value."""
        rows = [entry(app, key) for key in app["order"]]
        if app["limit"] is not None:
            rows.insert(0, [text(f"at most {app['limit']} pieces")])
        return View("form", rows, ("send",))

    def press(self, app: App, target: str) -> None:
        """Sends what is complete and allowed."""
        values = app["values"]
        empty = [key for key in app["order"] if values[key] == ""]
        amount = values.get("amount", "0")
        if empty:
            app["note"] = f"{empty[0]} is missing"
        elif not amount.isdecimal() or int(amount) > (app["limit"] or 0):
            app["note"] = "amount too large"
        else:
            app["sent"].append(dict(values))

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Mends values and sends."""
        if app["sent"]:
            return [] if app["sent"] == [goal["values"]] else None
        return [*fixes(app, goal["values"]), ("click", "send")]


class Login(Kind):
    """Log in; from level 2 on the password is refused and is reset by a code that is shown."""

    name = "login"

    def make(self, rng: Random, level: int) -> Task:
        """With the right password, or with one that has to be reset."""
        name = pick(rng, WORDS.texts["name"])
        word, new = (pick(rng, WORDS.texts[key]) + number(rng, 10, 99) for key in ("pet", "city"))
        app = new_app("login", name=name, password=word if level == 1 else "")
        app |= {"code": number(rng, 1000, 9999), "refused": False, "inside": False}
        app["values"] = dict.fromkeys(("name", "password", "code", "new password"), "")
        asked = f"Log in as {name} with the password {word}."
        if level > 1:
            asked += f" If it is refused, forget it and set the new password {new}."
        return Task(app, {"given": word, "expected": word if level == 1 else new}, asked)

    def view(self, app: App) -> View:
        """The page to log in, to reset the password, or of who is inside."""
        if app["page"] == "login":
            rows = [entry(app, "name"), entry(app, "password")]
            return View("login", rows, ("log in", "forgot"))
        if app["page"] == "reset":
            rows = [[text(f"code {app['code']}")], entry(app, "code"), entry(app, "new password")]
            return View("reset", rows, ("set",))
        return View("account", [[text(f"welcome {app['name']}")]])

    def press(self, app: App, target: str) -> None:
        """Checks the password, or sets a new one for who types the code."""
        values = app["values"]
        if target == "forgot":
            go(app, "reset", target)
        elif target == "set":
            if values["code"] != app["code"] or not values["new password"]:
                app["note"] = "code refused"
            else:
                app["password"] = values["new password"]
                go_back(app)
                app["note"] = "password is set"
        elif values["name"] == app["name"] and app["password"] == values["password"] != "":
            go(app, "account", target)
            app["inside"] = True
        else:
            app["note"], app["refused"] = "password refused", True

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Tries the given password first, since a player does not know that it is refused."""
        expected, given = goal["expected"], goal["given"]
        if app["inside"]:
            return [] if app["password"] == expected else None
        enter: list[Step] = [("click", "log in")]
        who = fixes(app, {"name": app["name"]})
        if app["password"] == expected:
            steps = [*who, *fixes(app, {"password": expected}), *enter]
            return [("back",), *steps] if app["page"] == "reset" else steps
        reset = fixes(app, {"code": app["code"], "new password": expected})
        steps = [*reset, ("click", "set"), *who, ("fill", "password", expected), *enter]
        if app["page"] == "reset":
            return steps
        if app["refused"]:
            return [("click", "forgot"), *steps]
        first = [*who, *fixes(app, {"password": given}), *enter, ("click", "forgot")]
        return [*first, *(step for step in steps if step not in who)]


class Wizard(Kind):
    """Choices on several pages, then an order, which at level 3 takes a moment."""

    name = "wizard"

    def make(self, rng: Random, level: int) -> Task:
        """As many pages as the level, and one."""
        keys = some(rng, [*WORDS.choices, "name", "city"], level + 1)
        app = new_app("part 1", keys=keys, sent=[], slow=level == 3)
        wanted: Goal = {}
        for key in keys:
            if key in WORDS.choices:
                value, wanted[key] = some(rng, WORDS.choices[key], 2)
                offer(app, key, WORDS.choices[key], value)
            else:
                app["values"][key], wanted[key] = "", pick(rng, WORDS.texts[key])
        said = ", ".join(_said(key, value) for key, value in some(rng, wanted.items()))
        return Task(app, {"values": wanted}, f"Go through all parts and order: {said}.")

    def _at(self, app: App) -> int:
        """Index of the part that is shown; the number of parts on the last pages."""
        return int(app["page"][5:]) - 1 if app["page"][:5] == "part " else len(app["keys"])

    def view(self, app: App) -> View:
        """One value a page, then all of them."""
        at, keys = self._at(app), app["keys"]
        if at < len(keys):
            buttons = ("next", "previous") if at else ("next",)
            return View(app["page"], [entry(app, keys[at])], buttons)
        if app["page"] == "review":
            rows = [[text(_said(key, app["values"][key]))] for key in keys]
            return View("review", rows, ("order", "previous"))
        said = "wait a moment" if app["page"] == "sending" else "ordered"
        return View(app["page"], [[text(said)]])

    def press(self, app: App, target: str) -> None:
        """Turns pages; orders."""
        at, count = self._at(app), len(app["keys"])
        if target == "order":
            app["page"], app["past"] = "sending", []
            if not app["slow"]:
                self.wait(app)
        elif at < count and target == "next" and app["values"][app["keys"][at]] == "":
            app["note"] = f"{app['keys'][at]} is missing"
        else:
            at += 1 if target == "next" else -1
            app["page"], app["past"] = "review" if at == count else f"part {at + 1}", []

    def wait(self, app: App) -> None:
        """Completes the order."""
        if app["page"] == "sending":
            app["page"] = "done"
            app["sent"].append(dict(app["values"]))

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Mends each page on the way; goes back to a wrong one."""
        wanted, keys, slow = goal["values"], app["keys"], app["slow"]
        if app["sent"]:
            return [] if app["sent"] == [wanted] else None
        if app["page"] == "sending":
            return [("wait",)] if app["values"] == wanted else None
        wrong = [at for at, key in enumerate(keys) if app["values"][key] != wanted[key]]
        at = self._at(app)
        first = min([*wrong, at])
        steps: list[Step] = [("click", "previous")] * (at - first)
        for part in keys[first:]:
            steps += [*fixes(app, {part: wanted[part]}), ("click", "next")]
        return [*steps, ("click", "order"), *([("wait",)] if slow else [])]


class Settings(Kind):
    """Change some settings, which from level 2 on are on pages of their own, and no others."""

    name = "settings"

    def make(self, rng: Random, level: int) -> Task:
        """Two of four checkboxes at level 1, else one change in each of as many sections."""
        sections = {key: list(WORDS.sections[key]) for key in some(rng, WORDS.sections)}
        if level == 1:
            switches = [key for names in sections.values() for key in names[:2]]
            sections = {"general": some(rng, switches, 4)}
        app = new_app("settings" if level > 1 else "general", sections=sections)
        for key in (key for names in sections.values() for key in names):
            app["values"][key] = rng.random() < 0.5
            if key in WORDS.settings:
                offer(app, key, WORDS.settings[key], pick(rng, WORDS.settings[key]))
        changed = [pick(rng, names) for names in some(rng, sections.values())[:level]]
        if level == 1:
            changed = some(rng, sections["general"], 2)
        wanted = {
            key: pick(rng, [x for x in app["options"].get(key, (False, True)) if x != value])
            for key, value in app["values"].items()
            if key in changed
        }
        said = ", ".join(f"set {key} to {_shown(value)}" for key, value in wanted.items())
        return Task(app, {"values": {**app["values"], **wanted}}, f"{said[0].upper()}{said[1:]}.")

    def view(self, app: App) -> View:
        """The sections, or the settings of one."""
        if app["page"] == "settings":
            return View("settings", [[button(section)] for section in app["sections"]])
        return View(app["page"], [entry(app, key) for key in app["sections"][app["page"]]])

    def press(self, app: App, target: str) -> None:
        """Opens a section."""
        go(app, target, target)

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Mends one section after the other, the open one first."""
        here, steps = opened(app), list[Step]()
        for section in sorted(app["sections"], key=lambda each: each != app["page"]):
            wanted = {key: goal["values"][key] for key in app["sections"][section]}
            if mended := fixes(app, wanted):
                there = [section] if "general" not in app["sections"] else []
                steps += [*way(here, there), *mended]
                here = there
        return steps


class Spelling(Kind):
    """Lines of a text, some with two letters swapped, to be typed as they should be."""

    name = "spelling"
    least_width = 320

    def make(self, rng: Random, level: int) -> Task:
        """As many wrong lines as the level, of two more."""
        right = some(rng, WORDS.sentences, level + 2)
        keys = [f"line {number + 1}" for number in range(len(right))]
        wanted = dict(zip(keys, right, strict=True))
        values = wanted | {key: _misspelt(rng, wanted[key]) for key in some(rng, keys, level)}
        app = new_app("letter", values=values)
        count = ("One line has", "Two lines have", "Three lines have")[level - 1]
        asked = f"{count} a word with two letters swapped. Type the whole line as it should be."
        return Task(app, {"values": wanted}, asked)

    def view(self, app: App) -> View:
        """A field for each line."""
        return View("letter", [entry(app, key) for key in app["values"]])

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Types wrong lines again."""
        return fixes(app, goal["values"])


def _said(key: str, value: object) -> str:
    return f"{key} {_shown(value)}"


def _shown(value: object) -> object:
    return ("on" if value else "off") if isinstance(value, bool) else value


def _misspelt(rng: Random, line: str) -> str:
    """The line with two letters of a long word swapped."""
    words = line.split()
    at = pick(rng, [at for at, word in enumerate(words) if len(word) > 3])
    return " ".join([*words[:at], pick(rng, swaps(words[at])), *words[at + 1 :]])


FORMS: tuple[Kind, ...] = (Press(), Form(), Login(), Wizard(), Settings(), Spelling())
