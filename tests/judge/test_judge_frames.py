"""Sentence frames: texts that no reader was tuned on, and tricks that wrap the truth."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from vagen.cli.main import USER_ERROR, main
from vagen.config.judge_options import JudgeConfig
from vagen.envs import parse_env_config
from vagen.judge import rules_for
from vagen.judge.calibration.frames import frame_writer, load_frames
from vagen.judge.calibration.run import judge_digest
from vagen.judge.calibration.writer import sample_scenes

FILE = Path(__file__).parents[1] / "data" / "judge" / "frames.yaml"
FRAMES = load_frames(FILE)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("half", ["train", "held_out"])
@pytest.mark.parametrize("env_name", FRAMES.environments)
def test_the_strict_reader_takes_no_trick_for_the_present_state(env_name: str, half: Any) -> None:
    rng, writer_class = Random(0), frame_writer(env_name, FRAMES, half)
    env_config = writer_class.env_configs[0]
    writer = writer_class(parse_env_config(env_name, env_config))
    rules = rules_for(env_name)
    assert rules is not None
    one, two = (scene.state for scene in sample_scenes(env_name, [env_config], 2, 0))
    assert rules.read(writer.plain(one)).understood
    tricks = sum(len(hack.of(half)) for hack in FRAMES.hacks.values())
    for number in range(2 * tricks):
        text = writer.adversarial(rng, number, one, two).text
        reading = rules.read(text)
        assert reading.flags or not reading.understood, text


@pytest.mark.parametrize("env_name", FRAMES.environments)
def test_stored_figures_are_of_this_judge_which_pays_no_trick(env_name: str) -> None:
    stored = json.loads((RESULTS / f"judge-frames-{env_name.lower()}.json").read_text())
    assert stored["judge_digest"] == judge_digest(JudgeConfig())
    (measured,) = stored["environments"].values()
    assert measured["statements"] >= 990
    assert measured["paid"] == 0.0 and measured["precision"] in (None, 1.0)


def halves(data: Any) -> Iterator[tuple[set[str], set[str]]]:
    """Both halves of every list in a file."""
    if isinstance(data, dict) and "held_out" in data:
        one, two = (
            set(each) if isinstance(each, list) else {x for values in each.values() for x in values}
            for each in (data["train"], data["held_out"])
        )
        yield one, two
    elif isinstance(data, dict):
        for value in data.values():
            yield from halves(value)


def test_the_halves_have_nothing_in_common() -> None:
    found = list(halves(yaml.safe_load(FILE.read_text())))
    assert len(found) > 30
    assert all(one and two and not one & two for one, two in found)


def test_a_single_claim_without_a_choice_has_no_incomplete_text() -> None:
    """Such as that Navigation's target is out of view, with nothing else in it."""
    options = {"render_mode": "text", "starts": "anywhere"}
    writer = frame_writer("Navigation", FRAMES, "held_out")(parse_env_config("Navigation", options))
    states = [scene.state for scene in sample_scenes("Navigation", [options], 40, 0)]
    states = [s for s in states if [each.claim_name() for each in writer._truth(s)] == ["unseen"]]
    assert states and all(writer.partial(Random(0), state) is None for state in states)


def test_command_line_measures_on_frames(tmp_path: Path, capsys: Any) -> None:
    command = ["judge", "calibrate", "--env", "Blackjack", "--texts", str(FILE)]
    assert main([*command, "--statements", "200", "--out", str(tmp_path / "x")]) == 0
    assert "precision –  recall 0.0000 (not understood" in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "x" / "calibration.json").read_text())[
        "environments"
    ].values()
    assert found["paid"] == 0.0 and found["refused"] == 1.0
    assert found["unread"] > 0.5
    assert set(found["recall_by_wording"]) == {"known words", "new words"}


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda data: data.pop("hacks"), [], "`hacks` is missing"),
        (lambda data: data["closings"].update(test=[]), [], "unknown key `closings.test`"),
        (lambda data: data["environments"].pop("Sokoban"), [], "has no frames for Sokoban, but"),
        (lambda data: data["environments"]["Sokoban"]["claims"].pop("box"), [], "claim `box`"),
        (lambda data: None, ["--texts", "no.yaml"], "no.yaml cannot be read"),
    ],
)
def test_what_is_no_file_of_frames_is_refused(
    change: Any, words: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    data = yaml.safe_load(FILE.read_text())
    change(data)
    path = tmp_path / "frames.yaml"
    path.write_text(yaml.safe_dump(data))
    command = ["judge", "calibrate", "--env", "Sokoban", "--texts", str(path), *words]
    assert main([*command, "--out", str(tmp_path / "x")]) == USER_ERROR
    assert message in capsys.readouterr().err
