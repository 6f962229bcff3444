"""What a text that never changes earns is measured by `build`, and not paid (`above_chance`)."""

from vagen.judge.blind import blind_scores
from vagen.judge.scoring import judge_of
from vagen.rollout.types import NOTHING, SectionScores
from vagen.service import environments_of
from vagen.stages.build import build, load_levels

JUDGED = (
    "judge.use_state_reward=true",
    "envs.game.env_config.prompt_format=grounding_worldmodeling",
    "judge.above_chance=true",
)


def test_the_build_records_the_best_constant_text(make_run, make_experiment):
    run = make_run(*JUDGED)
    build(run)
    (levels,) = load_levels(run)
    blind = levels.blind
    assert 0.2 < blind.observation < 0.9 and 0.2 < blind.prediction < 0.9
    seeds = [ref.seed for ref in levels.splits["train"]]
    again = blind_scores(run.experiment, "game", seeds, environments_of())
    assert again == blind
    # No sentence of its own is worth more, whatever the level.
    spec = run.experiment.envs["game"]
    reader = judge_of(run.experiment.judge, spec.env_name, spec.env_config)
    rules = reader.rules
    env = environments_of().open(spec.env_name, spec.env_config)
    truths = [rules.truth(env.reset(seed=seed)[1]["state"]) for seed in seeds]
    for row in ("above", "same row", "below"):
        for column in ("left", "same column", "right"):
            text = f"target is {row} and {column}"
            assert reader.scores(text, truths).mean() < blind.observation + 0.15
    plain = make_run()
    build(plain)
    assert load_levels(plain)[0].blind == NOTHING


def test_an_environment_without_rules_has_none(make_experiment):
    config = make_experiment("envs.game.env_name=SVG")
    assert blind_scores(config, "game", [0, 1], environments_of()) == SectionScores()
