"""A game: an episode that a person and an agent play in turns, in a browser or a terminal."""

import asyncio
import io
import threading
from contextlib import closing

import numpy as np
import pytest
import uvicorn
from fastapi.testclient import TestClient
from free_ports import free_ports
from PIL import Image

from vagen.engines.make import make_engine
from vagen.envs import make
from vagen.play import Game, agent_named, experiment_of
from vagen.play.game import GameError
from vagen.play.server import game_app
from vagen.play.terminal import blocks, play_here
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.runner import EpisodeSpec

OPTIONS = {"prompt_format": "free_think", "max_actions_per_step": 1}


def expert_actions(level):
    """What the expert does on a level."""
    env, actions = make("FrozenLake", OPTIONS, split="test"), []
    env.reset(seed=level)
    over = False
    while not over:
        *_, terminated, truncated, info = env.step(env.expert_response())
        actions += info["parsed"]["actions"]
        over = terminated or truncated
    return actions


def test_a_person_and_the_expert_play_one_episode(tmp_path):
    """It is an episode as an evaluation has them: the same rewards, a batch that can be read."""

    async def played():
        game = Game(experiment_of("FrozenLake", OPTIONS))
        expert = agent_named("expert", game)
        shown = await game.start(3)
        assert shown.turn == 0 and len(shown.frames) == 1 and not shown.done
        with pytest.raises(GameError, match="has not ended"):
            game.save(tmp_path / "early")
        first, *_ = expert_actions(3)
        shown = await game.play(game.write({"answer": first, "think": "I see it"}), "you")
        assert shown.steps[0].by == "you" and shown.steps[0].actions == [first]
        assert shown.steps[0].sections["reasoning"] == "I see it"
        shown = await game.play("nonsense", "you")
        assert not shown.steps[1].format_correct and shown.steps[1].actions == []
        while not shown.done:
            shown = await game.play(await expert(game.asked), "expert")
        assert shown.success and [step.by for step in shown.steps][2:] == ["expert"] * (
            len(shown.steps) - 2
        )
        with pytest.raises(GameError, match="start a level"):
            await game.play("more", "you")
        page = game.save(tmp_path / "episode")
        assert "level 3" in page.read_text()
        return shown

    shown = asyncio.run(played())
    [episode] = TrajectoryBatch.load(tmp_path / "episode").trajectories
    assert episode.success and episode.score == pytest.approx(shown.score)
    assert [turn.response_text for turn in episode.turns] == [step.answer for step in shown.steps]
    assert [step.actions[0] for step in shown.steps if step.actions] == expert_actions(3)


def test_another_level_drops_the_episode_that_has_not_ended():
    async def played():
        game = Game(experiment_of("FrozenLake", OPTIONS))
        await game.start(1)
        await game.play(game.write({"answer": "Left"}), "you")
        shown = await game.start(2)
        await game.close()
        return shown

    shown = asyncio.run(played())
    assert (shown.level, shown.turn, shown.steps, shown.score) == (2, 0, [], 0)


def test_an_environment_that_fails_says_so(monkeypatch):
    from vagen.envs.frozenlake.env import FrozenLakeEnv

    def fails(self, action):
        raise RuntimeError("the ice broke")

    monkeypatch.setattr(FrozenLakeEnv, "step", fails)

    async def played():
        game = Game(experiment_of("FrozenLake", OPTIONS))
        await game.start(1)
        return await game.play(game.write({"answer": "Left"}), "you")

    shown = asyncio.run(played())
    assert shown.done and not shown.success and "the ice broke" in shown.error


def test_who_can_play_is_said():
    game = Game(experiment_of("FrozenLake", OPTIONS))
    with pytest.raises(ValueError, match="there is no model 'somebody'"):
        agent_named("somebody", game)
    answer = asyncio.run(_random_answer(game))
    assert "<answer>" in answer
    with pytest.raises(GameError, match="did you mean `FrozenLake`"):
        Game(game.config, "FrozenLak")


async def _random_answer(game):
    agent = agent_named("random", game)
    await game.start(0)
    answer = await agent(game.asked)
    await game.close()
    return answer


def test_calls_are_for_the_page_alone_and_in_order(tmp_path):
    """A page of another address knows no key; nothing can be done before a level is started."""
    game = Game(experiment_of("FrozenLake", OPTIONS))
    with TestClient(game_app(game, agent_named("expert", game), "expert", tmp_path)) as client:
        assert client.post("/start", json={"level": 1}).status_code == 403
        page = client.get("/").text
        key = page.partition('"key":')[2].partition('"')[2].partition('"')[0]
        head = {"X-Key": key}
        early = client.post("/answer", json={"texts": {"answer": "Left"}}, headers=head)
        assert early.status_code == 409 and "start a level" in early.json()["detail"]
        assert client.post("/start", json={"level": -1}, headers=head).status_code == 422
        shown = client.post("/start", json={"level": 3}, headers=head).json()
        assert shown["frames"][0].startswith("data:image/png;base64,")
        while not shown["done"]:
            shown = client.post("/agent", json={}, headers=head).json()
        assert shown["success"] and shown["whole"]
        saved = client.post("/save", json={}, headers=head).json()["page"]
        assert saved == str(tmp_path / "FrozenLake-3-1.html")
        assert client.post("/save", json={}, headers=head).json()["page"] != saved


def test_a_frame_as_half_blocks_has_its_colours():
    frame = np.zeros((4, 2, 3), np.uint8)
    frame[0, 0], frame[1, 0], frame[3, 1] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    upper, lower = blocks(buffer.getvalue(), 80).splitlines()
    assert upper.startswith("\x1b[38;2;255;0;0;48;2;0;255;0m▀\x1b[38;2;0;0;0;48;2;0;0;0m▀")
    assert lower.count("▀") == 2 and "48;2;0;0;255m" in lower


def test_in_the_terminal_a_person_plays_and_lets_the_expert_end_it(tmp_path, monkeypatch, capsys):
    first, *_ = expert_actions(3)
    number = 1 + ["Left", "Down", "Right", "Up"].index(first)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{number}\nt\nA\nl 4\nq\n"))
    game = Game(experiment_of("FrozenLake", OPTIONS))
    asyncio.run(play_here(game, agent_named("expert", game), "expert", 3, tmp_path))
    said = capsys.readouterr().out
    assert f"you: {first}" in said and "expert: " in said and "true: " in said
    assert "won " in said and "level 4, turn 0" in said
    assert (tmp_path / "FrozenLake-3-1.html").is_file()


@pytest.fixture
def address(tmp_path):
    """A game that is served."""
    game = Game(experiment_of("FrozenLake", OPTIONS))
    app = game_app(game, agent_named("expert", game), "expert", tmp_path)
    [port] = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


def test_in_the_browser_a_person_plays_three_moves_and_the_expert_goes_on(address, browser):
    page = browser.new_page()
    page.set_default_timeout(200_000)
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{address}#3")
    steps, outcome = page.locator("#steps li"), page.locator("#outcome")
    page.wait_for_selector("#frames img")
    for count, key in enumerate(("ArrowLeft", "1", "ArrowLeft"), 1):  # against the wall, or to it
        page.locator("body").press(key)
        page.wait_for_selector(f"#steps li:nth-child({count})")
    assert steps.all_inner_texts()[0].startswith("you: Left")
    page.locator("body").press("Space")
    page.wait_for_selector("#steps li:nth-child(4)")
    assert steps.first.inner_text().startswith("expert: ")
    assert "True then" in steps.first.inner_text()
    page.locator("body").press("Enter")
    page.wait_for_selector("#outcome.won:not(:empty)")
    assert outcome.inner_text() == "won"
    page.get_by_role("button", name="Save episode").click()
    page.wait_for_selector("#notice:not([hidden])")
    assert "FrozenLake-3-1.html" in page.locator("#notice").inner_text()
    page.get_by_role("button", name="Next level").click()
    page.wait_for_selector("#steps:empty", state="attached")
    assert page.locator("#level").input_value() == "4" and page.url.endswith("#4")
    page.get_by_text("Write an answer").click()
    page.get_by_label("Answer").fill("<script>alert(1)</script>")
    page.get_by_role("button", name="Give this answer").click()
    page.wait_for_selector("#steps li.bad")
    assert "<script>alert(1)</script>" in steps.first.inner_text()
    assert not wrong


@pytest.mark.slow
def test_a_model_of_this_machine_plays_as_in_its_evaluation(warm_runs):
    """A run's policy answers greedily what its own evaluation of the level has."""
    run = warm_runs["tiny:vl"]
    rollout = run.experiment.actor_rollout_ref.rollout
    greedy = rollout.val_kwargs.model_copy(update={"temperature": 0.0})
    config = run.experiment.model_copy(
        update={
            "actor_rollout_ref": run.experiment.actor_rollout_ref.model_copy(
                update={"rollout": rollout.model_copy(update={"val_kwargs": greedy})}
            )
        }
    )

    async def played():
        game = Game(config)
        agent = agent_named(str(run.newest_policy()), game)
        shown = await game.start(0)
        while not shown.done:
            shown = await game.play(await agent(game.asked), "policy")
        return [step.answer for step in shown.steps]

    engine = make_engine(config, run.infra, str(run.newest_policy()), version="policy")
    with closing(engine):
        spec = EpisodeSpec(
            trajectory_id="t",
            group_id="t",
            config_id=next(iter(config.envs)),
            env_name=next(iter(config.envs.values())).env_name,
            env_config_digest="",
            level_seed=0,
            sampling_seed=0,
        )
        sampling = config.actor_rollout_ref.rollout.val_kwargs
        [episode], _ = engine.play([spec], sampling=sampling, split="test")
    assert asyncio.run(played()) == [turn.response_text for turn in episode.turns]
