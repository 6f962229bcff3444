"""Web's model in Python: tasks, experts, side effects, actions, rewards, texts; no browser."""

import json
import math
from random import Random
from typing import get_args

import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from pydantic import ValidationError

from vagen import envs
from vagen.envs import check_env
from vagen.envs.web.application import Kind
from vagen.envs.web.env import TaskName, WebConfig, WebEnv
from vagen.envs.web.screen import KINDS, Action, Screen, cost
from vagen.judge import RuleJudge, rules_for

TASKS = get_args(TaskName)
TEXT = {"render_mode": "text", "prompt_format": "no_think"}


def screen_of(task: str, level: int, seed: int, height: int = 320) -> Screen:
    kind = KINDS[task]
    made = kind.make(Random(seed), level)
    return Screen(kind, made.app, made.goal, max(kind.least_width, 320), height)


def finish(screen: Screen) -> int:
    """Plays the expert to the end; its number of actions."""
    count = 0
    while steps := screen.plan():
        screen.act(screen.next_action(steps[0]))
        count += 1
        assert count < 100, (screen.kind.name, steps, screen.app)
    return count


def press(screen: Screen, name: str) -> None:
    """Clicks on what is called so."""
    left, top, *_ = next(each["box"] for each in screen.usable if each["name"] == name)
    screen.act(Action("click", ((left + 1, top + 1),)))


def fill(screen: Screen, name: str, text: str) -> None:
    press(screen, name)
    screen.act(Action("type", text=text))


def note(screen: Screen) -> str:
    return next((each["name"] for each in screen.elements if each["role"] == "note"), "")


def test_there_are_as_many_kinds_as_names():
    assert set(KINDS) == set(TASKS) and len(TASKS) >= 12
    assert all(isinstance(kind, Kind) for kind in KINDS.values())


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_does_every_task_and_names_are_unambiguous(task, level):
    """On a page that is higher than its lists, and on one of six lines, where they scroll."""
    for seed in range(40):
        screen = screen_of(task, level, seed, height=320 if seed % 2 else 192)
        left = cost(screen.plan())
        assert 1 <= left <= 20
        while steps := screen.plan():
            names = [each["name"] for each in screen.usable if each["name"]]
            assert len(set(names)) == len(names)
            boxes = [tuple(each["box"]) for each in screen.usable]
            assert len(set(boxes)) == len(boxes)
            assert all(
                x >= 0 and x + w <= screen.width and y + h <= screen.height for x, y, w, h in boxes
            )
            action = screen.next_action(steps[0])
            screen.act(action)
            after = screen.plan()
            assert after is not None and cost(after) <= left  # no step leads away
            left = cost(after)
        assert screen.plan() == []


@pytest.mark.parametrize("task", TASKS)
def test_after_any_input_the_expert_succeeds_or_all_is_lost(task):
    lost = 0
    for seed in range(60):
        rng, screen = Random(seed), screen_of(task, 1 + seed % 3, seed, height=192)
        for _ in range(rng.randrange(25)):
            boxes = [each["box"] for each in screen.usable] or [[0, 0, 9, 9]]
            points = [(x + w // 2, y + h // 2) for x, y, w, h in rng.choices(boxes, k=2)]
            screen.act(
                rng.choice(
                    [
                        Action("click", tuple(points[:1])),
                        Action("click", tuple(points[:1])),
                        Action("drag", tuple(points)),
                        Action("type", text=rng.choice(("12", "cat", "notes"))),
                        Action("key", text=rng.choice(("Enter", "Tab", "Backspace", "Escape"))),
                        Action("scroll", text=rng.choice(("up", "down"))),
                        Action("back"),
                        Action("wait"),
                    ]
                )
            )
            assert json.loads(json.dumps(screen.to_state())) == screen.to_state()
            if screen.plan() in ([], None):  # the episode would be over
                break
        if screen.plan() is None:
            lost += 1
        else:
            finish(screen)
            assert screen.plan() == []
    assert lost < 60


# Wrong side effects.


def test_what_cannot_be_undone_is_lost():
    screen = screen_of("press", 1, 0)
    press(screen, next(word for word in screen.app["words"] if word != screen.goal["button"]))
    assert screen.plan() is None

    mail = screen_of("mail", 1, 0)
    other = next(each for each in mail.app["mails"] if each != mail.goal["mail"])
    press(mail, other)
    press(mail, "archive")
    assert mail.plan() is None

    form = screen_of("form", 1, 0)
    for key, value in form.goal["values"].items():
        if isinstance(value, str):
            fill(form, key, value)
        elif not value:
            press(form, key)  # which nobody asked for
    if form.app["values"] == form.goal["values"]:
        press(form, next(key for key, value in form.goal["values"].items() if value is True))
    press(form, "send")
    assert len(form.app["sent"]) == 1 and form.plan() is None


def test_what_can_be_undone_has_to_be():
    """A second ware in the cart, a setting, an event that was deleted, a saved pin."""
    shop = screen_of("shop", 1, 0)
    before, wanted = cost(shop.plan()), shop.goal["item"]
    press(shop, next(name for name in shop.app["items"] if name != wanted))
    press(shop, "add")
    assert note(shop) == "added" and cost(shop.plan()) > before
    finish(shop)
    assert shop.app["orders"] == [[wanted]]

    settings = screen_of("settings", 1, 0)
    key = next(k for k, v in settings.goal["values"].items() if settings.app["values"][k] == v)
    press(settings, key)
    assert cost(settings.plan()) == 3
    finish(settings)
    assert settings.app["values"] == settings.goal["values"]

    calendar = screen_of("calendar", 1, 0)
    calendar.width = 448
    title = next(iter(calendar.app["events"].values()))
    press(calendar, title)
    press(calendar, "delete")
    assert title not in calendar.app["events"].values()
    finish(calendar)
    assert calendar.app["events"] == calendar.goal["events"]

    pins = screen_of("map", 1, 0)
    press(pins, next(name for name in pins.app["pins"] if name not in pins.goal["saved"]))
    press(pins, "save")
    finish(pins)
    assert pins.app["saved"] == pins.goal["saved"]


def test_errors_are_said_and_change_nothing():
    form = screen_of("form", 3, 1, height=416)
    press(form, "send")
    assert note(form).endswith("is missing") and form.app["sent"] == []
    for key, value in form.goal["values"].items():
        if isinstance(value, str) and key not in form.app["options"]:
            fill(form, key, str(form.app["limit"] + 1) if key == "amount" else value)
    press(form, "send")
    assert note(form) == "amount too large" and form.app["sent"] == []
    finish(form)

    login = screen_of("login", 2, 1)
    fill(login, "name", login.app["name"])
    fill(login, "password", login.goal["given"])
    press(login, "log in")
    assert note(login) == "password refused"
    press(login, "forgot")
    fill(login, "code", "0")
    fill(login, "new password", login.goal["expected"])
    press(login, "set")
    assert note(login) == "code refused"
    finish(login)
    assert login.app["inside"]

    files = screen_of("files", 2, 1)
    name, folder = next(iter(files.app["files"].items()))
    press(files, folder)
    press(files, name)
    fill(files, "name", next(each for each in files.app["files"] if each != name))
    press(files, "save")
    assert note(files) == "choose another name" and files.app["files"][name] == folder


def test_a_field_takes_input_as_browsers_do():
    screen = screen_of("form", 1, 0)
    first, second = (key for key in screen.app["order"] if screen.app["values"][key] == "")
    fill(screen, first, "anna")
    screen.act(Action("type", text=" b"))
    assert screen.app["values"][first] == "anna b"
    screen.act(Action("key", text="Backspace"))
    assert screen.app["values"][first] == "anna "
    press(screen, first)  # selects all
    screen.act(Action("type", text="x"))
    assert screen.app["values"][first] == "x"
    screen.act(Action("key", text="Tab"))
    screen.act(Action("type", text="y"))
    assert screen.app["values"][second] == "y"
    screen.act(Action("key", text="Enter"))
    assert screen.app["sent"]


def test_a_list_scrolls_by_its_rows():
    screen = screen_of("mail", 3, 0, height=160)
    assert screen.room == 4 and len(screen.app["mails"]) == 8
    bar = next(each for each in screen.elements if each["role"] == "scrollbar")
    assert bar["value"] == "1 to 4 of 8"
    for text, expected in (("down", 3), ("down", 4), ("down", 4), ("up", 1), ("up", 0), ("up", 0)):
        screen.act(Action("scroll", text=text))
        assert screen.scroll == expected


# Levels and options.


def test_levels_come_from_seeds_in_splits():
    found = {}
    for split in ("train", "val", "test"):
        for seed in range(30):
            level, again = (WebEnv.sample_level(WebConfig(), seed, split) for _ in range(2))
            assert level == again
            assert found.setdefault(level.level_hash, split) == split
            assert WebEnv.difficulty(level)[0] >= 1


def test_every_kind_is_drawn():
    drawn = {WebEnv.sample_level(WebConfig(), seed, "train").kind for seed in range(200)}
    assert drawn == set(TASKS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tasks": []}, "at least one"),
        ({"tasks": ["press", "press"]}, "each kind once"),
        ({"difficulty": [3, 1]}, "from 1 to 3"),
        ({"width": 320}, "task calendar needs a width of at least 448"),
        ({"tasks": ["bank"]}, "press"),
        ({"height": 100}, "160"),
        ({"prompt_format": "grounding_structured"}, "use grounding"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        envs.make("Web", options)


# Actions.


@pytest.mark.parametrize(
    ("options", "written", "read"),
    [
        ({}, "click(10,20)", "click(10,20)"),
        ({}, " CLICK ( 010 , 20 ) ", "click(10,20)"),
        ({}, "click(448,320)", "click(448,320)"),
        ({}, "click(449,20)", None),
        ({}, "click(-1,20)", None),
        ({}, "click(3)", None),
        ({"scale": 2}, "click(896,640)", "click(896,640)"),
        ({"targets": "thousandths"}, "click(1000,1000)", "click(1000,1000)"),
        ({"targets": "thousandths"}, "click(1001,0)", None),
        ({"targets": "marks"}, "click(3)", "click(3)"),
        ({"targets": "marks"}, "click(3,4)", None),
        ({}, "drag(1,2,3,4)", "drag(1,2,3,4)"),
        ({}, "drag(1,2)", None),
        ({}, 'type("Anna, 12")', "type(Anna, 12)"),
        ({}, "type()", None),
        ({}, "type(a\nb)", None),
        ({}, f"type({'x' * 81})", None),
        ({}, "key(enter)", "key(Enter)"),
        ({}, "key(F5)", None),
        ({}, "scroll(DOWN)", "scroll(down)"),
        ({}, "scroll(left)", None),
        ({}, "back()", "back()"),
        ({}, "back(2)", None),
        ({}, "done()", None),
        ({"finish": "done"}, "done()", "done()"),
        ({}, "open(shop)", None),
        ({}, "", None),
    ],
)
def test_actions_are_read(options, written, read):
    config = {"prompt_format": "no_think", "action_sep": "|", **options}
    env = envs.make("Web", config)
    parsed = env.parse(f"<answer>{written}</answer>")
    assert (parsed.actions[0] if parsed.format_correct else None) == read


@pytest.mark.parametrize("targets", ["pixels", "thousandths", "marks"])
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
def test_what_is_written_is_read_as_it_was_meant(targets, scale):
    """Any element, by any units, is hit."""
    env = envs.make("Web", {"targets": targets, "scale": scale})
    for seed, task in enumerate(TASKS):
        kind = KINDS[task]
        made = kind.make(Random(seed), 3)
        screen = Screen(kind, made.app, made.goal, 448, 320)
        for each in screen.usable:
            left, top, width, height = each["box"]
            point = (left + width // 2, top + height // 2)
            written = env._write_action(screen, Action("click", (point,)))
            (canonical,) = env.parse(f"<answer>{written}</answer>").actions or (
                env._parser._read_action(written),
            )
            assert screen.at(*env._meant(screen, canonical).points[0]) == each


def test_a_mark_that_is_not_there_does_nothing():
    env = envs.make("Web", {**TEXT, "tasks": ["press"]})
    _, before = env.reset(seed=0)
    *_, info = env.step("<answer>click(99) | click(0)</answer>")
    assert info["parsed"]["format_correct"] and info["state"] == before["state"]
    assert not info["metrics"]["action_is_effective"]


# Episodes.


@pytest.mark.parametrize("options", [{}, {"finish": "done"}, {"prompt_detail": "brief"}])
def test_the_contract_is_kept_in_words(options):
    env = envs.make("Web", {"render_mode": "text", "expert_actions_per_turn": 2, **options})
    assert check_env(env) == []
    gymnasium_check(env, skip_render_check=True)


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_predicts_the_whole_truth(task):
    env = envs.make(
        "Web",
        {"render_mode": "text", "tasks": [task], "expert_actions_per_turn": 3, "height": 192}
        | {"expert_random_moves": 0.2},
    )
    judge = RuleJudge(rules_for("Web", env.config), prompt=env.system_prompt())
    for seed in range(8):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            state = info["state"]
            *_, ended, cut, info = env.step(env.expert_response())
            over, parsed = ended or cut, info["parsed"]
            assert parsed["format_correct"]
            assert "other" not in parsed["observation"]  # the applications' words are known
            assert parsed["observation"] == env.state_text(state)
            assert parsed["prediction"] == env.state_text(info["state"])
            verdict = judge.score_sync(
                observation=parsed["observation"],
                prediction=parsed["prediction"],
                state=state,
                next_state=info["state"],
            )
            assert (verdict.observation, verdict.prediction) == (1.0, 1.0), (parsed, verdict)


def test_done_decides_where_it_is_asked_for():
    env = envs.make("Web", {**TEXT, "tasks": ["settings"], "finish": "done"})
    env.reset(seed=0)
    *_, ended, _, info = env.step("<answer>done()</answer>")
    assert ended and not info["success"] and info["rewards"]["env"] == 0.0
    env.reset(seed=0)
    ended = False
    while not ended:
        response = env.expert_response()
        *_, ended, _, info = env.step(response)
    assert info["success"] and response == "<answer>done()</answer>"


def test_progress_is_paid_once_and_harm_costs():
    env = envs.make("Web", {**TEXT, "tasks": ["settings"], "difficulty": [1, 1]})
    env.reset(seed=0)
    action = env.expert_response()
    paid = [env.step(action)[4]["rewards"]["env"] for _ in range(3)]
    assert paid == [1.0, 0.0, 0.0]  # of two changes the first; undone; done again
    *_, ended, _, info = env.step(env.expert_response())
    assert ended and info["success"] and info["rewards"]["env"] == pytest.approx(1.0 + 10.0)

    env = envs.make("Web", {**TEXT, "tasks": ["press"]})
    _, info = env.reset(seed=0)
    right = next(
        e for e in info["state"]["elements"] if e["name"] == info["state"]["goal"]["button"]
    )
    mark = 1 if info["state"]["elements"][1] != right else 2
    *_, ended, _, info = env.step(f"<answer>click({mark})</answer>")
    assert ended and not info["success"] and info["rewards"]["env"] == -1.0
    assert env.distance(info["state"]) is None


def test_who_waits_or_repeats_one_click_earns_next_to_nothing():
    """Of all kinds; a fixed answer wins a twentieth at most."""
    for answer in ("wait()", *(f"click({mark})" for mark in range(1, 9))):
        won = earned = 0.0
        for seed in range(60):
            env = envs.make("Web", {**TEXT, "max_steps": 10})
            env.reset(seed=seed)
            over = False
            while not over:
                *_, ended, cut, info = env.step(f"<answer>{answer}</answer>")
                over = ended or cut
                earned += info["rewards"]["env"] / 60
            won += info["success"] / 60
        assert won <= 0.05 and earned < 1.0, (answer, won, earned)


# Texts.


STATE = WebEnv.example_state
TRUE = (
    "page is form . nickname holds empty . nickname at (80, 48) . parcel holds off . "
    "parcel at (80, 80) . send at (80, 144)"
)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (TRUE, 1.0),
        ("Parcel holds off; the page is form, nickname at (100, 40) and parcel at (60, 90). "
         "Nickname holds empty, send at (80, 150).", 1.0),
        ("page is form", 2 / 7),
        (TRUE.replace("(80, 144)", "(80, 48)"), 5 / 6),
        (TRUE.replace("holds off", "holds on"), 5 / 6),
        (TRUE + " . cursor in nickname", 12 / 13),
        ("page is shop . page is form", 0.0),
        ("nickname holds empty . nickname holds anna", 0.0),
        (TRUE.replace("empty", "empty in another world"), None),
    ],
)  # fmt: skip
def test_texts_are_scored(text, score):
    config = WebConfig()
    judge = RuleJudge(rules_for("Web", config))
    verdict = judge.score_sync(observation=text, prediction=None, state=STATE, next_state=STATE)
    assert verdict.observation == (score if score is None else pytest.approx(score))


def test_whatever_is_typed_the_truth_can_be_read():
    env = envs.make("Web", {**TEXT, "tasks": ["form"], "prompt_format": "grounding"})
    rules = rules_for("Web", env.config)
    env.reset(seed=1)
    field = next(e for e in env.state()["elements"] if e["role"] == "textbox")
    mark = [e for e in env.state()["elements"] if "id" in e].index(field) + 1
    for typed in ("a, b. c", "x holds y and z", "!!!", "Ünïcödé", "(1, 2)"):
        *_, info = env.step(
            f"<think><observation>x</observation><reasoning>x</reasoning></think>"
            f"<answer>click({mark}) | type({typed})</answer>"
        )
        text = env.state_text(info["state"])
        assert rules.score(rules.read(text).content, rules.truth(info["state"]))[0] == 1.0


def test_the_view_in_words_shows_marks_values_and_the_cursor():
    env = envs.make("Web", {**TEXT, "tasks": ["form"], "difficulty": [1, 1]})
    observation, info = env.reset(seed=1)
    lines = observation["text"].splitlines()
    assert info["state"]["instruction"] in observation["text"]
    fields = [line for line in lines if "textbox" in line]
    assert len(fields) == 2 and all(line.endswith("= empty") for line in fields)
    mark = fields[0].partition("]")[0][1:]
    observation, *_ = env.step(f"<answer>click({mark}) | type(oslo)</answer>")
    assert f"{fields[0].removesuffix('empty')}oslo (cursor)" in observation["text"]


def test_distance_falls_to_zero():
    env = envs.make("Web", TEXT)
    for seed in range(15):
        _, info = env.reset(seed=seed)
        start = info["state"]
        over = False
        while not over:
            *_, ended, cut, info = env.step(env.expert_response())
            over = ended or cut
        assert env.distance(start) > 0 == env.distance(info["state"])
        assert math.isclose(env.potential(info["state"], start), 1.0)
