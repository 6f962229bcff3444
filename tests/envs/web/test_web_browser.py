"""Web in a real browser: it agrees with the model in Python, repeats itself, and is shut in."""

import asyncio
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np
import pytest

from vagen import envs
from vagen.config.infra import EnvironmentsConfig
from vagen.envs import check_env
from vagen.envs.web.browser import Browser, BrowserLost, browser, installed
from vagen.envs.web.env import TaskName
from vagen.envs.web.screen import Action, Screen
from vagen.service import Environments

TASKS = get_args(TaskName)
FOCUSED = "(document.activeElement.closest('[data-id]') ?? { dataset: { id: null } }).dataset.id"
pytestmark = pytest.mark.skipif(not installed(), reason="no chromium: make system-packages")


def make(**options):
    return envs.make("Web", {"prompt_format": "no_think", **options})


def evaluated(env, expression):
    """The value of an expression in the page that shows an environment."""
    return env._use(lambda page: browser().call(page._evaluate(expression)))


def drawn_action(screen: Screen, rng: Random) -> Action:
    """Something that a hand at mouse and keyboard may do, mostly where something is."""
    boxes = [each["box"] for each in screen.usable] or [[0, 0, screen.width, screen.height]]

    def point():
        left, top, width, height = rng.choice(boxes)
        if rng.random() < 0.1:
            return rng.randrange(screen.width), rng.randrange(screen.height)
        # The first and the last pixel of a box are its own.
        return left + rng.choice((0, width // 2, width - 1)), top + rng.choice((0, height - 1))

    return rng.choice(
        [
            Action("click", (point(),)),
            Action("click", (point(),)),
            Action("drag", (point(), point())),
            Action("type", text=rng.choice(("a", "Anna 12", "<b>x</b> & 'y'", "é ü"))),
            Action("key", text=rng.choice(("Enter", "Tab", "Escape", "Backspace"))),
            Action("scroll", text=rng.choice(("down", "up"))),
            Action("back"),
            Action("wait"),
        ]
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_browser_does_what_the_model_says(task):
    """By the expert and by chance: the same state, and a document with the model's elements."""
    env = make(tasks=[task], height=224)
    rng = Random(task)
    for seed in range(3):
        env.reset(seed=seed)
        model = env._screen.copy()
        for turn in range(25):
            steps = model.plan()
            expert = turn % 2 and steps
            action = model.next_action(steps[0]) if expert else drawn_action(model, rng)
            model.act(action)
            for event in env._use(lambda page, action=action: page.act(action)):
                env._screen.handle(event)
            env._refresh()
            assert env._screen.to_state() == model.to_state(), action
            assert env._elements == model.elements, action
            assert evaluated(env, FOCUSED) == model.focus, action


def test_the_same_actions_give_the_same_pictures_in_any_page():
    """Byte for byte, in two pages, and in one after another game."""
    one, other = make(targets="marks"), make(targets="marks")
    for seed in range(8):
        one.reset(seed=seed)

        def elsewhere(_, seed=seed):  # while this page is in use, there is another
            other.reset(seed=seed)

        one._use(elsewhere)
        for _ in range(6):
            response = one.expert_response()
            first, _, ended, *_ = one.step(response)
            second = one._use(lambda _, response=response: other.step(response)[0])
            assert np.array_equal(first["images"][0], second["images"][0])
            if ended:
                break


@pytest.mark.parametrize(
    ("scale", "shape"), [(1.0, (192, 320, 3)), (0.5, (96, 160, 3)), (1.5, (288, 480, 3))]
)
def test_pictures_have_the_size_of_their_options(scale, shape):
    env = make(tasks=["press"], width=320, height=192, scale=scale)
    observation, _ = env.reset(seed=1)
    assert observation["images"][0].shape == shape
    *_, info = env.step(env.expert_response())  # coordinates are those of the picture
    assert info["success"]


def test_marks_and_the_cursor_are_drawn():
    plain, marked = make(tasks=["form"]), make(tasks=["form"], targets="marks")
    pictures = [env.reset(seed=1)[0]["images"][0] for env in (plain, marked)]
    assert (pictures[0] != pictures[1]).any()
    left, top, _, height = next(
        e["box"] for e in plain.state()["elements"] if e["role"] == "textbox"
    )
    observation, *_ = plain.step(f"<answer>click({left + 5},{top + height // 2})</answer>")
    changed = np.argwhere((observation["images"][0] != pictures[0]).any(-1))
    assert changed.size and changed[:, 0].min() >= top and changed[:, 0].max() < top + height


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"targets": "marks", "finish": "done", "scale": 0.5}])
def test_the_contract_is_kept_with_pictures(options):
    assert (
        check_env(envs.make("Web", {"tasks": ["press", "form", "files"], **options}), seconds=200)
        == []
    )


def test_nothing_is_reached_from_the_page():
    """No request leaves, and no dialog waits for an answer."""
    env = make()
    env.reset(seed=0)

    def asks(page, script, *arguments):
        return browser().call(page._page.evaluate(script, *arguments))

    fetching = """async address => {
        try { await fetch(address); return "reached"; } catch (error) { return "refused"; } }"""
    loading = """address => new Promise(done => { const image = new Image();
        image.onload = () => done("reached"); image.onerror = () => done("refused");
        image.src = address; })"""
    for address in ("http://127.0.0.1:1/", "https://example.org/x.png", "file:///etc/passwd"):
        assert env._use(lambda page, address=address: asks(page, fetching, address)) == "refused"
        assert env._use(lambda page, address=address: asks(page, loading, address)) == "refused"
    assert env._use(lambda page: asks(page, "confirm('?')")) is False


def test_what_is_typed_is_text():
    typed = "<img src=x onerror=alert(1)>"
    env = make(tasks=["form"])
    env.reset(seed=1)
    left, top, *_ = next(e["box"] for e in env.state()["elements"] if e["role"] == "textbox")
    for action in (Action("click", ((left + 5, top + 5),)), Action("type", text=typed)):
        for event in env._use(lambda page, action=action: page.act(action)):
            env._screen.handle(event)
        env._refresh()
    assert any(each.get("value") == typed for each in env._elements)
    assert evaluated(env, "document.images.length") == 0


def wins(env):
    over = False
    while not over:
        *_, ended, cut, info = env.step(env.expert_response())
        over = ended or cut
    return info["success"]


def test_a_browser_that_dies_is_replaced_within_the_episode():
    env, other = make(tasks=["form"]), make(tasks=["wizard"])
    for each in (env, other):
        each.reset(seed=0)
        each.step(each.expert_response())
    before = browser().pid
    os.kill(before, signal.SIGKILL)
    assert wins(env) and wins(other)
    assert browser().pid != before


def test_a_page_that_hangs_is_replaced_within_the_episode(monkeypatch):
    env = make(tasks=["press"])
    env.reset(seed=0)
    monkeypatch.setattr(browser(), "seconds", 5.0)

    def hang(page):
        asyncio.run_coroutine_threadsafe(page._page.evaluate("for (;;);"), browser()._loop)
        time.sleep(0.5)
        return page

    hung = env._use(hang)
    assert wins(env)
    assert env._use(lambda page: page) is not hung


def test_a_driver_that_dies_costs_one_episode():
    """Playwright's own process, without which no browser answers or starts."""
    env = make(tasks=["press"])
    env.reset(seed=0)
    children = Path(f"/proc/{os.getpid()}/task/").glob("*/children")
    pids = [int(pid) for each in children for pid in each.read_text().split()]
    drivers = [pid for pid in pids if "node" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert drivers
    for pid in drivers:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrowserLost):
        env.step(env.expert_response())
    env.reset(seed=0)
    assert wins(env)


def test_a_page_that_always_fails_costs_its_episode(monkeypatch):
    """The error names the cause, and the next episode is played."""
    env = make(tasks=["press"])
    env.reset(seed=0)
    monkeypatch.setattr(browser(), "seconds", 1e-6)
    with pytest.raises(BrowserLost, match="did not answer"):
        env.step(env.expert_response())
    monkeypatch.undo()
    env.reset(seed=0)
    assert wins(env)


def test_sessions_share_a_page_and_none_sees_another():
    envs_ = [make(tasks=[task], targets="marks") for task in ("form", "login", "form", "mail")]
    alone = []
    for seed, env in enumerate(envs_):
        observation, _ = env.reset(seed=seed)
        played = [observation["images"][0]]
        for _ in range(3):
            played.append(env.step(env.expert_response())[0]["images"][0])
        alone.append(played)
    for seed, env in enumerate(envs_):
        assert np.array_equal(env.reset(seed=seed)[0]["images"][0], alone[seed][0])
    for turn in range(1, 4):
        for env, played in zip(envs_, alone, strict=True):
            observation, *_ = env.step(env.expert_response())
            assert np.array_equal(observation["images"][0], played[turn])
    # Four sessions need one page; another test uses two at once.
    assert len(browser()._free[(448, 320, 1.0)]) <= 2


def test_no_browser_is_said_with_what_to_do(monkeypatch):
    monkeypatch.setenv("PLAYWRIGHT_CHROMIUM", "/nowhere/chromium")
    monkeypatch.setattr("vagen.envs.web.env.browser", Browser)
    with pytest.raises(BrowserLost, match="playwright install chromium"):
        make().reset(seed=0)


def test_it_plays_beside_a_running_loop():
    async def play():
        env = make(tasks=["press"])
        env.reset(seed=0)
        *_, info = env.step(env.expert_response())
        return info["success"]

    assert asyncio.run(play())


@pytest.mark.slow
def test_worker_processes_play_it_side_by_side():
    places = Environments(EnvironmentsConfig(workers=2))

    async def play(seed):
        env = await places.make("Web", {"prompt_format": "no_think"})
        for episode in range(2):
            await env.reset(seed=10 * seed + episode)
            over = False
            while not over:
                _, _, ended, cut, info = await env.step(await env.expert_response())
                over = ended or cut
            assert info["success"]
        await env.close()

    async def all_of_them():
        await asyncio.gather(*map(play, range(6)))

    try:
        asyncio.run(all_of_them())
    finally:
        places.close()
