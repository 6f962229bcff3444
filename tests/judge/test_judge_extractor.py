"""An extractor that is trained here: what it is given and answers, and as a judge's model."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from vagen.cli.main import USER_ERROR, main
from vagen.clients import DEADLINE, EndpointError
from vagen.config.judge_options import JudgeConfig, LLMJudgeConfig
from vagen.envs import parse_env_config
from vagen.judge import LLMJudge, rules_for
from vagen.judge.calibration.frames import frame_writer, load_frames
from vagen.judge.calibration.run import judge_digest
from vagen.judge.calibration.writer import sample_scenes
from vagen.judge.llm import client_of
from vagen.judge.llm.embedded import extractor_answer, extractor_prompt, read_extraction
from vagen.judge.llm.probe import probe
from vagen.models.tiny import build_tiny_model

FILE = Path(__file__).parents[1] / "data" / "judge" / "frames.yaml"
FRAMES = load_frames(FILE)


@pytest.mark.parametrize("env_name", FRAMES.environments)
def test_what_a_lesson_says_comes_back_with_quotes_of_the_text(env_name: str) -> None:
    writer_class = frame_writer(env_name, FRAMES, "train")
    env_config = writer_class.env_configs[0]
    writer = writer_class(parse_env_config(env_name, env_config))
    one, two = (scene.state for scene in sample_scenes(env_name, [env_config], 2, 0))
    rules = rules_for(env_name, writer.env_config)
    for number in range(100):
        lesson = writer.lesson(Random(number), one, two)
        answer = extractor_answer(lesson.text, lesson.said)
        found = read_extraction(answer, lesson.text, writer.kinds)
        claims = rules.quoted(found, lesson.text)
        assert list(map(str, claims)) == [str(claim) for _, claim in lesson.said]


@pytest.mark.parametrize(
    ("answer", "claims"),
    [
        ("1 box is above and left", 1),
        ("1 box is above and left\n2 target is same row and right", 2),
        ("3 box is above and left", 0),
        ("0 box is above and left", 0),
        ("box is above and left", 0),
        ("1 box is above", 0),
        ("1 crate is above and left", 0),
        ("1 box is above and left, true", 0),
        ("", 0),
    ],
)
def test_what_else_an_extractor_writes_claims_nothing(answer: str, claims: int) -> None:
    rules = rules_for("Sokoban")
    text = "The box is up and left. The target is to my right"
    kinds = tuple(rules.kinds.values())
    assert len(rules.quoted(read_extraction(answer, text, kinds), text)) == claims
    assert extractor_prompt("observation", text, kinds).startswith("observation box target\n1 the")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("models") / "extractor"
    build_tiny_model("tiny:text", folder, corpus=["a box is above"], tags=(), seed=0)
    return folder


def test_what_a_model_cannot_answer_is_absent(untrained: Path) -> None:
    """One of random weights does not come to an end: its verdicts are absent, never 0."""
    config = LLMJudgeConfig(model=str(untrained), max_tokens=8)
    state = {"player": [1, 1], "boxes": [[0, 1]], "targets": [[2, 2]]}

    async def verdicts(*, late: bool = False) -> list[Any]:
        DEADLINE.set(asyncio.get_running_loop().time() if late else None)
        client = client_of(config)
        judge = LLMJudge(client, rules={"Sokoban": rules_for("Sokoban")})
        texts = [f"I see a box above me, {n} cells away" for n in range(3)]
        asked = [
            judge.score(
                env_name="Sokoban",
                observation=text,
                prediction=None,
                state=state,
                next_state=state,
            )
            for text in texts
        ]
        found = await asyncio.gather(*asked)
        assert client.usage.requests == 3 and client.usage.answers == 0
        assert late or client.usage.completion_tokens == 24
        return found

    for verdict in asyncio.run(verdicts()):
        assert verdict.observation is None
        assert verdict.absent == ("observation:cut",)
    for verdict in asyncio.run(verdicts(late=True)):
        assert verdict.absent == ("observation:deadline",)


def test_a_folder_without_a_model_is_refused(tmp_path: Path, untrained: Path) -> None:
    with pytest.raises(EndpointError, match=r"is no extractor .*train-extractor` writes one"):
        asyncio.run(probe(LLMJudgeConfig(model=str(tmp_path))))
    assert not asyncio.run(probe(LLMJudgeConfig(model=str(untrained)))).problem


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frozenlake-tiny", "judge.type=cascade", "judge.llm.model=nowhere"], "train-extractor"),
        (["svg-tiny", "judge.use_state_reward=true", "judge.type=llm"], "has none of"),
    ],
)
def test_an_extractor_that_cannot_judge_is_refused(
    words: list[str], message: str, untrained: Path, capsys: Any
) -> None:
    model = [] if "nowhere" in words[-1] else [f"judge.llm.model={untrained}"]
    assert main(["plan", *words, *model]) == USER_ERROR
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--texts is missing"),
        (["--texts", str(FILE)], "--out is missing"),
        (["--texts", str(FILE), "--out", "x", "--env", "Sokoban"], "name one instead of --env"),
        (["--texts", str(FILE), "--out", "x", "--steps", "0"], "it must be at least 1"),
    ],
)
def test_training_refuses(words: list[str], message: str, capsys: Any) -> None:
    assert main(["judge", "train-extractor", *words]) == USER_ERROR
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_an_extractor_learns_and_judges(tmp_path: Path, capsys: Any) -> None:
    """From the command line: trained, then measured as the model of a cascade."""
    model, again = tmp_path / "model", tmp_path / "again"
    train = ["judge", "train-extractor", "blackjack-tiny", "--texts", str(FILE), "--steps"]
    assert main([*train, "3", "--out", str(again)]) == 0
    before = float(capsys.readouterr().out.split()[-1])
    assert main([*train, "40", "--out", str(model)]) == 0
    assert float(capsys.readouterr().out.split()[-1]) < before / 3
    named = ["blackjack-tiny", "judge.use_state_reward=true", "judge.type=cascade"]
    named += [f"judge.llm.model={model}", f"infra.judge_cache={tmp_path}"]
    out = tmp_path / "calibration"
    command = ["judge", "calibrate", *named, "--texts", str(FILE), "--statements", "100"]
    assert main([*command, "--out", str(out)]) == 0
    stored = json.loads((out / "calibration.json").read_text())
    (found,) = stored["environments"].values()
    assert found["cost"]["calls"] > 30 and found["absent"] < 10
    digests = [
        judge_digest(JudgeConfig(type="cascade", llm=LLMJudgeConfig(model=str(folder))))
        for folder in (model, again)
    ]
    assert stored["judge_digest"] == digests[0] != digests[1]
