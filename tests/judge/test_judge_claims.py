"""An environment that says what its texts claim has a judge, an extractor, a calibration."""

import asyncio
import json
import sys
from typing import Literal

import pytest
from llm_server import MODEL, ScriptedServer

from vagen.config.judge_options import JudgeConfig, LLMJudgeConfig
from vagen.envs.base import AgentEnv
from vagen.envs.claims import Claim, write_claims
from vagen.envs.config import EnvConfig
from vagen.envs.template import write_environment
from vagen.experiment.load import load_experiment
from vagen.judge import ChatClient, LLMJudge, RuleJudge, rules_for
from vagen.judge.blind import blind_scores
from vagen.judge.calibration import writer_of
from vagen.judge.calibration.run import Subject, calibrate
from vagen.judge.llm.prompts import Role, claims_extractor
from vagen.judge.rule_judge import Rules
from vagen.learning.audit import audit
from vagen.service import environments_of

NAME = "corridor:CorridorEnv"
LEFT = {"player": 5, "door": 2}
RIGHT = {"player": 1, "door": 2}


class Thing(Claim):
    phrase = "{name} is at {x} mm"
    subject = ("name",)
    name: Literal["cube", "ball"]
    x: int

    def agreement(self, true: "Thing") -> float:
        return float(self.name == true.name and abs(self.x - true.x) <= 5)


class Wall(Claim):
    phrase = "a wall is {side}"
    subject = None
    weight = 0.5
    side: Literal["ahead", "behind"]


class Room(AgentEnv):
    env_name, config_class, claims = "Room", EnvConfig, (Thing, Wall)

    @classmethod
    def truth(cls, state, config):
        things = [Thing(name=name, x=x) for name, x in state["things"].items()]
        return [*things, *(Wall(side=side) for side in state["walls"])]


ROOM = Rules(Room)
STATE = {"things": {"cube": 40, "ball": -7}, "walls": ["ahead", "behind"]}


def scored(text):
    reading = ROOM.read(text)
    return reading, ROOM.score(reading.content, ROOM.truth(STATE))[0]


@pytest.fixture
def corridor(tmp_path, monkeypatch):
    """What `vagen env init corridor` writes."""
    write_environment("corridor", tmp_path / "corridor")
    monkeypatch.syspath_prepend(str(tmp_path / "corridor"))
    yield tmp_path
    sys.modules.pop("corridor", None)


def test_what_is_written_is_read_and_right():
    text = write_claims(ROOM.truth(STATE))
    assert text == "cube is at 40 mm . ball is at -7 mm . a wall is ahead . a wall is behind"
    reading, score = scored(text)
    assert reading.content == ROOM.truth(STATE) and not reading.flags and score == 1.0
    given = [{"claim": c.claim_name(), **c.model_dump()} for c in ROOM.truth(STATE)]
    assert scored(json.dumps(given)) == (reading, 1.0)
    assert scored("Cube is at  40 MM.\nBall is at -7 mm; a wall is ahead, a wall is behind")[1] == 1


@pytest.mark.parametrize(
    "text",
    [
        "The cube is at 40 mm, and the ball is at -7 mm. I see a wall ahead and a wall behind.",
        "1. Cube: at 40 mm\n2) I can see that the ball is at the -7 mm\n- there is a wall ahead\n"
        "* a wall is behind",
        "(1) the cube is at 40 mm and ball is at -7 mm and a wall is ahead and a wall is behind",
    ],
)
def test_words_that_take_nothing_back_are_read_over(text):
    assert scored(text)[0].content == ROOM.truth(STATE) and scored(text)[1] == 1.0


def test_precision_recall_weight_and_tolerance_count():
    assert scored("cube is at 44 mm")[1] == pytest.approx(2 / (1 + 3))  # one of weight 3
    assert scored("cube is at 46 mm")[1] == 0
    assert scored("a wall is ahead")[1] == pytest.approx(2 * 0.5 / (0.5 + 3))
    right, wrong = "cube is at 40 mm . ball is at -7 mm", "cube is at 40 mm . ball is at 7 mm"
    assert scored(right)[1] == pytest.approx(0.8) and scored(wrong)[1] == pytest.approx(0.4)
    before, after = ROOM.truth(STATE), ROOM.truth({**STATE, "walls": []})
    assert ROOM.has_changed((Wall(side="ahead"),), before, after)
    assert not ROOM.has_changed((Thing(name="cube", x=40),), before, after)


@pytest.mark.parametrize(
    ("text", "flags", "understood"),
    [
        ("cube is at 40 mm . cube is at 41 mm", ("contradiction",), True),
        ("a wall is ahead . a wall is behind", (), True),
        ("a wall is ahead . " * 3, ("repeated",), True),
        (" . ", ("no_entity",), True),
        ("[]", ("no_entity",), True),
        ("the cube is not at 40 mm", (), False),
        ("no cube is at 40 mm", (), False),
        ("I see that in a mirror the cube is at 40 mm", (), False),
        ("cube is at forty mm", (), False),
        ("pyramid is at 40 mm", (), False),
        ("in another picture cube is at 40 mm", (), False),
        ("I would see: cube is at 40 mm", (), False),
        ("cube is at 40 mm, so is ball", (), False),
        ('[{"claim": "thing", "name": "cube", "x": 40, "sure": true}]', (), False),
        ('[{"claim": "pyramid"}]', (), False),
        ('[{"claim": "wall", "side": "ahead"}] #', (), False),
        ("[" * 10_000, (), False),
    ],
)
def test_nothing_else_is_read(text, flags, understood):
    reading = ROOM.read(text)
    assert (reading.flags, reading.understood) == (flags, understood)


def test_the_written_environment_has_it_all(corridor):
    path = corridor / "own.yaml"
    path.write_text(
        f'name: own\npreset: vagen_full\nenvs: {{corridor: {{env_name: "{NAME}", '
        "env_config: {length: 12}}}\nrollout_manager: {max_turns: 20, turn_reward_budget: 3}\n"
    )
    config = load_experiment(path)
    verdict = RuleJudge(rules_for(NAME)).score_sync("door is left", "door is left", LEFT, RIGHT)
    assert (verdict.observation, verdict.prediction) == (1.0, 0.0)
    (found,) = audit(config, environments_of(), levels=4)
    assert found.rows[0].success == 1.0 and not found.problems
    blind = blind_scores(config, "corridor", range(20), environments_of())
    assert 0.5 <= blind.observation < 0.8
    writer = writer_of(NAME)
    assert writer is not None
    subject = Subject("corridor", NAME, ({"length": 12},), writer)
    (measured,) = calibrate(JudgeConfig(), [subject], statements=600).values()
    assert measured.recall == 1.0 and measured.precision > 0.98


def test_a_language_model_extracts_the_same_claims_and_must_quote(corridor, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-0")

    def score(answer, text, state=LEFT):
        async def ask():
            with ScriptedServer(wrap=json.dumps(answer)) as server:
                options = LLMJudgeConfig(
                    base_url=server.base_url, model=MODEL, api_key_env="JUDGE_KEY", retries=0
                )
                client = ChatClient(options)
                judge = LLMJudge(client, NAME, rules_for(NAME))
                found = await judge.score_section("observation", text, state)
                await client.close()
                return found

        return asyncio.run(ask())

    text = "The  way out lies to my left"
    quoted = {"claim": "door", "quote": "way out lies to my left", "side": "left"}
    assert score({"claims": [quoted]}, text).score == 1.0
    assert score({"claims": [quoted]}, text, RIGHT).score == 0.0
    unquoted = score({"claims": [{**quoted, "quote": "door is left"}]}, text)
    assert (unquoted.score, unquoted.flags) == (0.0, ("no_entity",))
    wrong = score({"claims": [{**quoted, "side": "up"}]}, text)
    assert wrong.score is None and wrong.absent == "invalid"


def test_what_the_extractor_asks_names_every_form():
    question = claims_extractor(Role.CURRENT_EXTRACTOR, "cube is there", (Thing, Wall))
    assert "- `thing`: {name} is at {x} mm; name is cube or ball" in question.system
    assert "- `wall`: a wall is {side}; side is ahead or behind" in question.system
    assert json.loads(question.user) == {"statement": "cube is there"}
    forms = question.schema["$defs"]
    assert set(forms["Thing"]["required"]) == {"claim", "quote", "name", "x"}
    assert forms["Thing"]["additionalProperties"] is False
