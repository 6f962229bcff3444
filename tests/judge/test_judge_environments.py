"""What holds of every environment's claims: experts are right, nothing raises, calibrations do."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from vagen import envs
from vagen.config.judge_options import JudgeConfig
from vagen.judge import RuleJudge, rules_for
from vagen.judge.calibration.run import calibrate, judge_digest, subject_named
from vagen.judge.llm.prompts import Role, claims_answer, claims_extractor
from vagen.rollout.types import Verdict

NAMES = ("Blackjack", "FrozenLake", "Household", "Navigation", "PrimitiveSkill", "Sokoban", "Web")
GRIDS = ("FrozenLake", "Sokoban")
WORDS_ONLY = "Web_structured"
"""Has no structured notation."""
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def made(name: str, **options: Any) -> Any:
    """The environment without a simulator's pictures."""
    drawn = {} if name == "PrimitiveSkill" else {"render_mode": "text"}
    if name == "Navigation":
        drawn |= {"tasks": ["base", "complex_instruction", "long_horizon"]}
        drawn |= {"expert_actions_per_turn": 3}
    return envs.make(name, drawn | options)


@pytest.mark.parametrize("detail", ["full", "brief"])
@pytest.mark.parametrize(
    ("name", "notation"),
    [
        *((name, "") for name in NAMES if name != "PrimitiveSkill"),
        *(
            (name, "_structured")
            for name in NAMES
            if f"{name}_structured" != WORDS_ONLY and name != "PrimitiveSkill"
        ),
        *((name, "_symbolic") for name in GRIDS),
    ],
)
def test_true_statements_of_the_expert_get_full_marks(
    name: str, notation: str, detail: str
) -> None:
    moves = {"expert_actions_per_turn": 3} if name in GRIDS and detail == "brief" else {}
    form = f"grounding_worldmodeling{notation}"
    env = made(name, prompt_format=form, prompt_detail=detail, **moves)
    judge = RuleJudge(rules_for(name, env.config), prompt=env.system_prompt())
    for seed in range(5):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            state = info["state"]
            *_, terminated, truncated, info = env.step(env.expert_response())
            over, parsed = terminated or truncated, info["parsed"]
            texts = parsed["observation"], parsed["prediction"]
            verdict = judge.score_sync(*texts, state, info["state"])
            if name in GRIDS or name == "Navigation":
                assert verdict == Verdict(1.0, 1.0)
                continue
            assert verdict.observation == 1.0
            # Cards are dealt by chance, and what a closed place holds is not known.
            if name == "Household" or parsed["actions"] == ["Stand"]:
                assert verdict.prediction > 0.6 and not verdict.flags


@pytest.mark.parametrize(
    ("name", "notation"),
    [(name, form) for name in NAMES for form in ("", "_structured") if name + form != WORDS_ONLY],
)
def test_noise_is_read_without_an_exception(name: str, notation: str) -> None:
    env = made(name, prompt_format=f"grounding_worldmodeling{notation}")
    rules, rng = rules_for(name, env.config), Random(3)
    marks = ["{", "}", '"', ":", "[", "]", ",", ".", "(", ")", "-", "9" * 9, "\0"]
    words = [*env.state_text(env.example_state).split(), *marks]
    for _ in range(2000):
        rules.read(rng.choice(" |").join(rng.choices(words, k=rng.randrange(14))).replace("|", ""))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GRIDS])
def test_an_extractor_can_list_every_claim(name: str) -> None:
    env = made(name)
    rules, text = rules_for(name, env.config), env.state_text(env.example_state)
    truth = rules.truth(env.example_state)
    given = [{"claim": c.claim_name(), "quote": str(c), **c.model_dump()} for c in truth]
    kinds = tuple(rules.kinds.values())
    answer = claims_answer(kinds).model_validate({"claims": given}).model_dump()["claims"]
    assert rules.score(tuple(rules.quoted(answer, text)), truth)[0] == 1.0
    told = claims_extractor(Role.CURRENT_EXTRACTOR, text, kinds).system
    named = {field for kind in kinds for field, f in kind.model_fields.items() if f.description}
    assert all(f"{field} is " in told for field in named)


def assert_good_enough(figures: dict[str, Any], statements: int) -> None:
    assert figures["statements"] >= 0.99 * statements and figures["absent"] == 0
    assert figures["precision"] >= 0.98 and figures["recall"] >= 0.95
    assert figures["kappa"] >= 0.95 and figures["refused"] >= 0.98
    assert min(figures["recall_by_wording"].values()) >= 0.9
    assert max(figures["information"][kind] for kind in ("vague", "template")) <= 0.05
    assert figures["information"]["true"] >= 0.5
    assert figures["attack_patterns"] >= 150
    assert figures["worst_attack"][1] <= figures["chance"], figures["worst_attack"]


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_calibration_is_of_this_judge_and_good_enough(name: str) -> None:
    stored = json.loads((RESULTS / f"judge-calibration-{name.lower()}.json").read_text())
    assert stored["judge_digest"] == judge_digest(JudgeConfig())
    assert_good_enough(stored["environments"][name], 5000)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_calibration(name: str) -> None:
    found = calibrate(JudgeConfig(), [subject_named(name)], statements=1000, seed=1)
    assert_good_enough(found[name].to_dict(), 1000)
