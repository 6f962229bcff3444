"""Estimators from outside the package: the documented one, and what is refused."""

import re
from pathlib import Path

import pytest
import torch

from vagen.advantage import ESTIMATORS, AdvantageError, estimate_with_metrics, get_estimator
from vagen.config import ConfigError
from vagen.experiment.load import load_experiment

DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"
NAME = "my_estimators:clipped_rloo"
WRONG = """\
from vagen.advantage import estimator

misspelt = estimator(msk="loss")(len)
"""


@pytest.fixture(autouse=True)
def documented(tmp_path, monkeypatch):
    """The file of the documentation, and one that is wrong, where Python finds them."""
    (text,) = re.findall(r"```python\n(.*?@estimator.*?)```", DOCS.read_text(), flags=re.S)
    (tmp_path / "my_estimators.py").write_text(text)
    (tmp_path / "wrong_estimators.py").write_text(WRONG)
    (tmp_path / "plain_estimators.py").write_text("def plain(inputs): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def experiment(name, *overrides):
    group = "rollout_manager.n_trajectory=2"
    return load_experiment(
        "frozenlake-tiny", [f"algorithm.adv_estimator={name}", group, *overrides]
    )


def test_the_documented_estimator_is_leave_one_out_cut_to_one():
    rewards = torch.tensor([[0.0, 0.1, 0.0], [0.0, 0.6, 9.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.2]])
    given = {
        "rewards": rewards,
        "loss_mask": torch.tensor([[0, 1, 0], [0, 1, 0], [0, 1, 1], [0, 1, 1]]),
        "attention_mask": torch.ones(4, 3),
        "group_ids": ["a", "a", "b", "b"],
    }
    found = estimate_with_metrics(NAME, **given)
    expected = [[0, -0.5, 0], [0, 0.5, 0], [0, 1, 1], [0, -1, -1]]
    torch.testing.assert_close(found.advantages, torch.tensor(expected, dtype=torch.float32))
    assert found.metrics == {"rloo/cut": 0.5}
    plain = estimate_with_metrics("masked_rloo", **given).advantages.clamp(-1, 1)
    torch.testing.assert_close(found.advantages, plain)
    rows = {**given, "trajectory_ids": [0, 1, 2, 2], "group_ids": ["a", "a", "a", "a"]}
    several = estimate_with_metrics(NAME, **rows).advantages
    torch.testing.assert_close(
        several, estimate_with_metrics("masked_rloo", **rows).advantages.clamp(-1, 1)
    )


def test_an_experiment_takes_it_and_is_held_to_what_it_declares():
    assert experiment(NAME).algorithm.adv_estimator == NAME
    with pytest.raises(ConfigError, match=f"n_trajectory.*{NAME} compares trajectories of one"):
        experiment(NAME, "rollout_manager.n_trajectory=1")
    with pytest.raises(ConfigError, match=f"critic.enable.*{NAME} reads no values"):
        experiment(NAME, "critic.enable=true")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("my_estimators:f", "has no attribute 'f'"),
        ("plain_estimators:plain", "is not declared one; write @vagen.advantage.estimator"),
        ("wrong_estimators:misspelt", "unexpected keyword argument 'msk'"),
        ("my_estimators", "one of your own is written module:function"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(name, reason):
    with pytest.raises(AdvantageError, match=re.escape(reason)):
        get_estimator(name)
    with pytest.raises(ConfigError, match=rf"`algorithm\.adv_estimator`: .*{re.escape(reason)}"):
        experiment(name)


def test_an_entry_point_gives_an_estimator_a_name(documented):
    folder = documented / "my_estimators-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: my-estimators\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[vagen.estimators]\nclipped = {NAME}\n")
    assert get_estimator("clipped") is get_estimator(NAME)
    assert "clipped" not in ESTIMATORS
    with pytest.raises(AdvantageError, match="did you mean `clipped`"):
        get_estimator("cliped")
