"""Tasks with lists: a shop, mail, a calendar, a table, files, a map, a board."""

import math
from itertools import product
from random import Random
from typing import Any

from vagen.envs.web.application import (
    WORDS,
    App,
    Goal,
    Kind,
    Step,
    Task,
    View,
    Widget,
    button,
    entry,
    fixes,
    go,
    go_back,
    mend,
    new_app,
    number,
    offer,
    opened,
    pick,
    some,
    text,
    way,
)


class Shop(Kind):
    """Order the cheapest ware of a kind, at level 3 among those with at least four stars."""

    name = "shop"
    least_width = 320

    def make(self, rng: Random, level: int) -> Task:
        """Six, nine or twelve wares of different prices."""
        named = some(rng, [f"{tone} {ware}" for tone in WORDS.tones for ware in WORDS.wares])
        prices = some(rng, range(5, 95), 3 + 3 * level)
        items = {name: [price, 2 + price % 4] for name, price in zip(named, prices, strict=False)}
        app = new_app("shop", items=items, open="", cart=[], orders=[])
        offer(app, "show", ["all", *WORDS.wares], "all")
        wanted = pick(rng, list(items))
        asked, ware = f"Order the {wanted}.", wanted.split()[1]
        if level > 1:
            least = 4 if level == 3 and items[wanted][1] >= 4 else 0
            same = [name for name, (_, stars) in items.items() if ware in name and stars >= least]
            wanted = min(same, key=lambda name: items[name][0])
            asked = f"Order the cheapest {ware}{' with four stars or more' * (least > 0)}."
        return Task(app, {"item": wanted}, f"{asked} Nothing else.")

    def view(self, app: App) -> View:
        """The wares, one ware, or the cart."""
        if app["page"] == "cart":
            rows = [[button(f"remove {name}")] for name in app["cart"]]
            return View("cart", rows, ("order",))
        facts = {
            name: [text(f"{price} euro"), text(f"{stars} stars")]
            for name, (price, stars) in app["items"].items()
        }
        if app["page"] == "ware":
            return View("ware", [[text(app["open"])], facts[app["open"]]], ("add", "cart"))
        rows = [
            [button(f"open {name}", name, role="link", share=2), *facts[name]]
            for name in facts
            if app["values"]["show"] in ("all", name.split()[1])
        ]
        return View("shop", rows, ("cart",), top=entry(app, "show"))

    def press(self, app: App, target: str) -> None:
        """Opens pages, fills the cart, orders."""
        verb, _, name = target.partition(" ")
        if verb == "open":
            app["open"] = name
            go(app, "ware", target)
        elif verb == "add" and app["open"] not in app["cart"]:
            app["cart"].append(app["open"])
            app["note"] = "added"
        elif verb == "remove":
            app["cart"].remove(name)
        elif verb == "cart":
            go(app, "cart", target)
        elif verb == "order" and app["cart"]:
            app["orders"].append(app["cart"])
            app["cart"], app["note"] = [], "ordered"

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Shows the wares of the kind, adds the one, removes others, orders."""
        item, cart = goal["item"], app["cart"]
        if app["orders"]:
            return [] if app["orders"] == [[item]] else None
        here, there, steps = opened(app), [f"open {item}"], list[Step]()
        if item not in cart:
            if here != there:
                steps = [*way(here, []), *fixes(app, {"show": item.split()[1]}), *way([], there)]
            steps.append(("click", "add"))
            here = there
        steps += [("click", "cart")] * (here[-1:] != ["cart"])
        steps += [("click", f"remove {name}") for name in cart if name != item]
        return [*steps, ("click", "order")]


class Mail(Kind):
    """Archive or delete a mail, reply to it, or reply with a number that stands in it."""

    name = "mail"
    least_width = 320

    def make(self, rng: Random, level: int) -> Task:
        """Five, seven or eight mails."""
        count = (5, 7, 8)[level - 1]
        people, topics = some(rng, WORDS.texts["name"], count), some(rng, WORDS.topics, count)
        pairs = zip(people, topics, strict=True)
        mails = {f"{who} {about}": number(rng, 100, 999) for who, about in pairs}
        app = new_app("inbox", mails=mails, open="", archived=[], deleted=[], replies=[])
        app["values"]["reply"] = ""
        mail = pick(rng, list(mails))
        who, about = mail.split()
        goal: Goal = {"mail": mail, "archived": [], "deleted": [], "replies": []}
        said = pick(rng, ("Archive", "Delete")) if level == 1 else "Reply to"
        asked = f"{said} the mail of {who} about {about}"
        if level == 1:
            goal["archived" if said == "Archive" else "deleted"] = [mail]
        else:
            line = pick(rng, WORDS.replies) if level == 2 else mails[mail]
            goal["replies"] = [[mail, line]]
            asked += f" with: {line}" if level == 2 else " with the number in it, then archive it"
            goal["archived"] = [mail] if level == 3 else []
        return Task(app, goal, f"{asked}.")

    def view(self, app: App) -> View:
        """The inbox, a mail, or a reply."""
        mail = app["open"]
        if app["page"] == "mail":
            who, about = mail.split()
            said = text(f"the number of the {about} is {app['mails'][mail]}")
            return View("mail", [[text(f"from {who}")], [said]], ("reply", "archive", "delete"))
        if app["page"] == "writing":
            return View("writing", [entry(app, "reply")], ("send",))
        left = [each for each in app["mails"] if each not in app["archived"] + app["deleted"]]
        return View("inbox", [[button(each, role="link")] for each in left])

    def press(self, app: App, target: str) -> None:
        """Opens mails and acts on the open one."""
        mail = app["open"]
        if target == "reply":
            app["values"]["reply"] = ""
            go(app, "writing", target)
        elif target == "send":
            app["replies"].append([mail, app["values"]["reply"]])
            go_back(app)
            app["note"] = "sent"
        elif target in ("archive", "delete"):
            app[f"{target}d"].append(mail)
            go_back(app)
        else:
            app["open"] = target
            go(app, "mail", target)

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Opens the mail, replies, archives; what was done to another cannot be undone."""
        lists = ("archived", "deleted", "replies")
        if any(app[each] != goal[each][: len(app[each])] for each in lists):
            return None
        left = {each: goal[each][len(app[each]) :] for each in lists}
        if not any(left.values()):
            return []
        mail, here, steps = goal["mail"], opened(app), list[Step]()
        if mail in app["archived"]:  # before the reply
            return None
        if left["replies"]:
            writing, line = [mail, "reply"], goal["replies"][0][1]
            fill = fixes(app, {"reply": line}) if here == writing else [("fill", "reply", line)]
            steps = [*way(here, writing), *fill, ("click", "send")]
            here = [mail]
        verbs = [verb for verb in ("archive", "delete") if left[f"{verb}d"]]
        return [*steps, *(way(here, [mail]) if verbs else []), *(("click", verb) for verb in verbs)]


class Calendar(Kind):
    """Add an event to a week, delete one, or move one."""

    name = "calendar"
    least_width = 448

    def make(self, rng: Random, level: int) -> Task:
        """Four, six or seven events."""
        cells = [f"{day} {hour}" for day in WORDS.days for hour in WORDS.hours]
        cells = some(rng, cells, 4 + 2 * level)
        titles = some(rng, WORDS.events, min(2 + 2 * level, 7))
        events = dict(zip(cells, titles, strict=False))
        free, cell = cells[-1], pick(rng, list(events))
        wanted = dict(events)
        if level == 1:
            title = next(each for each in WORDS.events if each not in titles)
            wanted[free], asked = title, f"Add {title} on {free.replace(' ', ' at ')}."
        elif level == 2:
            asked = f"Delete the event {wanted.pop(cell)}."
        else:
            wanted[free] = wanted.pop(cell)
            asked = f"Move the event {wanted[free]} to {free.replace(' ', ' at ')}."
        app = new_app("week", events=events, open="")
        app["values"]["title"] = ""
        offer(app, "day", WORDS.days, "")
        offer(app, "hour", WORDS.hours, "")
        return Task(app, {"events": wanted}, asked)

    def view(self, app: App) -> View:
        """The week, or an event."""
        if app["page"] == "event":
            buttons = ("save", "delete") if app["open"] in app["events"] else ("save",)
            return View("event", [entry(app, key) for key in ("title", "day", "hour")], buttons)
        rows = [[text(hour)] for hour in WORDS.hours]
        for row, day in product(rows, WORDS.days):
            title = app["events"].get(cell := f"{day} {row[0]['name']}", "")
            row.append({"id": cell, "role": "cell", "name": title or cell, "value": title})
        return View("week", rows, top=[text(""), *map(text, WORDS.days)])

    def press(self, app: App, target: str) -> None:
        """Opens a cell; saves or deletes its event."""
        values, events = app["values"], app["events"]
        if target not in ("save", "delete"):
            app["open"] = target
            values |= _event(target, events.get(target, ""))
            go(app, "event", target)
        elif target == "save" and not values["title"]:
            app["note"] = "title is missing"
        else:
            events.pop(app["open"], None)
            if target == "save":
                events[f"{values['day']} {values['hour']}"] = values["title"]
            go_back(app)

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Moves events to free cells, writes missing ones, deletes others."""
        events, wanted = app["events"], goal["events"]
        spare = [cell for cell in events if cell not in wanted]
        jobs: list[tuple[list[str], Goal, Goal | None]] = []
        for cell in (cell for cell, title in wanted.items() if events.get(cell) != title):
            same = [each for each in spare if events[each] == wanted[cell] and cell not in events]
            spare = [each for each in spare if each not in same[:1]]
            source = same[0] if same else cell
            was = _event(source, events.get(source, ""))
            jobs.append(([source], was, _event(cell, wanted[cell])))
        jobs += [([cell], _event(cell, events[cell]), None) for cell in spare]
        return mend(app, jobs)


class Table(Kind):
    """Set the stock of goods in a table, at level 3 sorted by price."""

    name = "table"
    least_width = 320

    def make(self, rng: Random, level: int) -> Task:
        """Six, eight or ten goods; from level 2 on the cheapest is meant."""
        goods, count = some(rng, WORDS.goods, 4 + 2 * level), number(rng, 100, 199)
        prices = dict(zip(goods, some(rng, range(2, 99), len(goods)), strict=True))
        values = {good: number(rng, 10, 99) for good in goods}
        app = new_app("stock", order=goods, prices=prices, sorted="", values=values)
        good = pick(rng, goods) if level == 1 else min(prices, key=lambda each: prices[each])
        asked = f"Set the stock of {good if level == 1 else 'the cheapest goods'} to {count}"
        asked = f"Order the table by price. {asked}" if level == 3 else asked
        goal = {"values": {**values, good: count}, "sorted": "price" if level == 3 else None}
        return Task(app, goal, f"{asked}.")

    def view(self, app: App) -> View:
        """A row for each of the goods."""
        euros = {good: text(f"{price} euro") for good, price in app["prices"].items()}
        rows = [[euros[good], *entry(app, good, share=2)] for good in app["order"]]
        return View("stock", rows, top=[button("by price")])

    def press(self, app: App, target: str) -> None:
        """Orders the rows."""
        app["sorted"] = "price"
        app["order"].sort(key=app["prices"].get)

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Orders the rows if asked to, then types."""
        ordered = goal["sorted"] in (None, app["sorted"])
        return [*([] if ordered else [("click", "by price")]), *fixes(app, goal["values"])]


class Files(Kind):
    """Rename, delete or move a file."""

    name = "files"
    least_width = 320

    def make(self, rng: Random, level: int) -> Task:
        """Six, seven or eight files in three folders."""
        names = some(rng, WORDS.files, 6 + level)
        files = {name: pick(rng, WORDS.folders) for name in names[:-1]}
        name, wanted = names[0], dict(files)
        folder = wanted.pop(name)
        if level == 1:
            asked = f"Delete the file {name} in {folder}."
        elif level == 2:
            wanted[names[-1]] = folder
            asked = f"Rename the file {name} in {folder} to {names[-1]}."
        else:
            wanted[name] = pick(rng, [each for each in WORDS.folders if each != folder])
            asked = f"Find the file {name} in one of the folders and move it to {wanted[name]}."
        app = new_app("files", files=files, open="")
        app["values"]["name"] = ""
        offer(app, "folder", WORDS.folders, "")
        return Task(app, {"files": wanted}, asked)

    def view(self, app: App) -> View:
        """The folders, the files of one, or a file."""
        if app["page"] == "file":
            rows = [entry(app, "name"), entry(app, "folder")]
            return View("file", rows, ("save", "delete"))
        if app["page"] == "files":
            return View("files", [[button(folder, role="link")] for folder in WORDS.folders])
        inside = [name for name, folder in app["files"].items() if folder == app["page"]]
        return View(app["page"], [[button(f"file {name}", name, role="link")] for name in inside])

    def press(self, app: App, target: str) -> None:
        """Opens folders and files; saves or deletes the open file."""
        values, files, opened = app["values"], app["files"], app["open"]
        if target in WORDS.folders:
            go(app, target, target)
        elif target not in ("save", "delete"):
            app["open"] = target.removeprefix("file ")
            values["name"], values["folder"] = app["open"], files[app["open"]]
            go(app, "file", target)
        elif target == "save" and (not values["name"] or values["name"] in files.keys() - {opened}):
            app["note"] = "choose another name"
        else:
            files.pop(opened)
            if target == "save":
                files[values["name"]] = values["folder"]
            go_back(app)

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Gives files the names and folders that are missing, deletes others."""
        files, wanted = app["files"], goal["files"]
        spare = [name for name in files if name not in wanted]
        found: list[tuple[str, Goal | None]] = []
        for name, folder in wanted.items():
            if files.get(name) != folder:
                if name not in files and not spare:
                    return None
                source = name if name in files else spare.pop()
                found.append((source, {"name": name, "folder": folder}))
        found += [(name, None) for name in spare]
        was = {name: {"name": name, "folder": folder} for name, folder in files.items()}
        return mend(app, [([files[name], f"file {name}"], was[name], job) for name, job in found])


class Map(Kind):
    """Save a pin of a map: a named one, or the one nearest to another."""

    name = "map"
    least_width = 448
    columns, rows = 5, 8

    def make(self, rng: Random, level: int) -> Task:
        """Five, seven or nine pins, of which one is clearly the nearest."""
        cells = [[x, y] for x in range(self.columns) for y in range(self.rows)]
        while True:
            names = some(rng, WORDS.pins, 3 + 2 * level)
            pins = dict(zip(names, some(rng, cells, len(names)), strict=True))
            around = sorted(names[1:], key=lambda name: self._metres(pins, names[0], name))
            near, next_near = (self._metres(pins, names[0], name) for name in around[:2])
            if next_near >= near + 1:
                break
        pin = names[0] if level == 1 else around[0]
        asked = f"Save the {pin}." if level == 1 else f"Save the pin nearest to the {names[0]}."
        return Task(new_app("map", pins=pins, open="", saved=[]), {"saved": [pin]}, asked)

    def _metres(self, pins: dict[str, Any], one: str, other: str) -> float:
        """Distance in lines; a cell is about three lines wide."""
        (x, y), (u, v) = pins[one], pins[other]
        return math.hypot(2.8 * (x - u), y - v)

    def view(self, app: App) -> View:
        """The map, or a pin."""
        if app["page"] == "pin":
            verb = "remove" if app["open"] in app["saved"] else "save"
            return View("pin", [[text(app["open"])]], (verb,))
        lines = [[text("")] * self.columns for _ in range(self.rows)]
        for name, (x, y) in app["pins"].items():
            lines[y][x] = button(name, role="pin")
        return View("map", lines)

    def press(self, app: App, target: str) -> None:
        """Opens a pin; saves or removes it."""
        if target == "save":
            app["saved"].append(app["open"])
        elif target == "remove":
            app["saved"].remove(app["open"])
        else:
            app["open"] = target
            go(app, "pin", target)

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Saves the one, removes others."""
        jobs = [(name, "remove") for name in app["saved"] if name not in goal["saved"]]
        jobs += [(name, "save") for name in goal["saved"] if name not in app["saved"]]
        here, steps = opened(app), list[Step]()
        for name, verb in sorted(jobs, key=lambda job: [job[0]] != here):
            steps += [*way(here, [name]), ("click", verb)]
            here = [name]
        return steps


class Board(Kind):
    """Drag cards to columns."""

    name = "board"
    least_width = 320

    def make(self, rng: Random, level: int) -> Task:
        """As many cards to move as the level, of five, seven or nine."""
        cards = {card: pick(rng, WORDS.columns) for card in some(rng, WORDS.cards, 3 + 2 * level)}
        moved = {
            card: pick(rng, [column for column in WORDS.columns if column != cards[card]])
            for card in some(rng, cards, level)
        }
        said = ", ".join(f"{card} to {column}" for card, column in moved.items())
        return Task(new_app("board", cards=cards), {"cards": {**cards, **moved}}, f"Drag {said}.")

    def view(self, app: App) -> View:
        """Three columns of cards below their names."""
        zones = [button(name, role="zone") for name in WORDS.columns]
        rows, counts = list[list[Widget]](), dict.fromkeys(WORDS.columns, 0)
        for card, column in app["cards"].items():
            row = counts[column]
            if row == len(rows):
                rows.append([zone | {"id": f"{zone['id']} {row}", "name": ""} for zone in zones])
            rows[row][WORDS.columns.index(column)] = button(f"card {card}", card, role="card")
            counts[column] += 1
        return View("board", rows, top=zones)

    def drop(self, app: App, moved: str, target: str) -> None:
        """Moves a card below the others of a column."""
        card = moved.removeprefix("card ")
        if target.startswith("card "):
            target = app["cards"][target.removeprefix("card ")]
        column = next(name for name in WORDS.columns if target.startswith(name))
        del app["cards"][card]
        app["cards"][card] = column

    def plan(self, app: App, goal: Goal) -> list[Step] | None:
        """Drags what is elsewhere."""
        return [
            ("drag", f"card {card}", column)
            for card, column in goal["cards"].items()
            if app["cards"][card] != column
        ]


def _event(cell: str, title: str) -> Goal:
    """The fields of an event."""
    return dict(zip(("title", "day", "hour"), (title, *cell.split()), strict=True))


OFFICES: tuple[Kind, ...] = (Shop(), Mail(), Calendar(), Table(), Files(), Map(), Board())
