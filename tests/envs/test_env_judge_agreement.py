"""The expert's state texts get full marks from the rule judge, in every notation."""

import pytest

from vagen import envs
from vagen.config.schema import JudgeConfig
from vagen.judge import make_judge, rules_for

STATEFUL = sorted(set(envs.LAYOUTS) - {"no_think", "free_think"})


@pytest.mark.parametrize("moves", [1, 3])
@pytest.mark.parametrize("prompt_format", STATEFUL)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("FrozenLake", {}),
        ("FrozenLake", {"prompt_detail": "brief"}),
        ("Sokoban", {}),
        ("Sokoban", {"dim_room": [7, 7], "num_boxes": 2}),
    ],
)
def test_true_statements_of_the_expert_get_full_marks(name, options, prompt_format, moves):
    options = {**options, "prompt_format": prompt_format, "expert_actions_per_turn": moves}
    env = envs.make(name, {**options, "render_mode": "text"})
    judge = make_judge(JudgeConfig(), rules={name: rules_for(name, env.config)})
    layout = env.config.layout
    for seed in range(5):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            before = info["state"]
            *_, terminated, truncated, info = env.step(env.expert_response())
            over = terminated or truncated
            verdict = judge.score_sync(
                env_name=name,
                observation=info["parsed"]["observation"],
                prediction=info["parsed"]["prediction"],
                state=before,
                next_state=info["state"],
            )
            assert verdict.observation == (1.0 if "observation" in layout.inner else None)
            assert verdict.prediction == (1.0 if "prediction" in layout.inner else None)
            assert verdict.flags == ()
