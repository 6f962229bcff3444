"""What a sweep's file may say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from vagen.cli.main import USER_ERROR, main
from vagen.config import ConfigError
from vagen.sweep.schema import Range, SweepConfig, check_sweep, load_sweep, seeds_of

SWEEP = {
    "name": "lake",
    "experiment": "frozenlake-tiny",
    "parameters": {"seed": "0-2", "algorithm.lam": [0.9, 1]},
}
LAM = {"low": 0.5, "high": 1.0}


@pytest.fixture
def load(tmp_path: Path):
    def loaded(**changes: Any) -> SweepConfig:
        path = tmp_path / "sweep.yaml"
        tree = {key: value for key, value in (SWEEP | changes).items() if value is not ...}
        path.write_text(yaml.safe_dump(tree, sort_keys=False))
        return load_sweep(path, name=None, overrides=[])

    return loaded


def test_a_grid_is_every_combination(load):
    config = load()
    assert config.size == 6
    assert [tuple(point.values()) for point in config.points()] == [
        (seed, lam) for seed in (0, 1, 2) for lam in (0.9, 1)
    ]
    experiment = config.load({"seed": 2, "algorithm.lam": 0.9})
    assert (experiment.seed, experiment.algorithm.lam) == (2, 0.9)


def test_experiments_are_a_parameter_like_others(load):
    names = ["frozenlake-tiny", "sokoban-tiny"]
    config = load(experiment=..., parameters={"experiment": names})
    assert [config.load(point).name for point in config.points()] == names


def test_words_of_the_command_line_come_last(load, tmp_path: Path):
    load(overrides=["critic.optim.lr=0.1"])
    path = tmp_path / "sweep.yaml"
    config = load_sweep(path, name="other", overrides=["critic.optim.lr=0.2"])
    assert config.name == "other"
    assert config.load(next(config.points())).critic.optim.lr == 0.2


def test_a_range_holds_what_is_written(load):
    config = load(
        parameters={"trainer.total_training_steps": {"low": 2, "high": 8}, "critic.optim.lr": LAM},
        sampler="random",
        trials=3,
    )
    steps, lr = config.parameters.values()
    assert isinstance(steps, Range) and steps.is_integer
    assert isinstance(lr, Range) and not lr.is_integer
    assert config.size == 3


@pytest.mark.parametrize(("text", "seeds"), [("3", (3,)), ("0-2,7", (0, 1, 2, 7))])
def test_seeds(text: str, seeds: tuple[int, ...]):
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,1", "-1", "0-"])
def test_what_names_no_seeds(text: str):
    with pytest.raises(ConfigError, match=r"write whole numbers from 0, such as 0-4 or 0,3,7"):
        seeds_of(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiment": ...}, "name the experiment once"),
        ({"parameters": {}}, "at least 1 item"),
        ({"parameters": {"algorithm.lam": LAM}}, r"a grid needs a list of values for `algo"),
        ({"parameters": {"algorithm.lam": 0.9}}, r"write a list of values, or \{low: 1, high: 9\}"),
        ({"parameters": {"algorithm.lam": [1.0, 1.0]}}, "`algorithm.lam` has a value twice"),
        ({"parameters": {"algorithm.lam": [[1]]}}, "only numbers, texts and null vary"),
        ({"parameters": {"algorithm.lam": {"low": 1, "hgih": 2}}}, "did you mean"),
        ({"parameters": {"algorithm.lam": {"low": 1, "high": 1}}}, "low must be less than high"),
        ({"parameters": {"infra.threads": [1, 2]}}, "not where it runs"),
        ({"sampler": "tpe"}, "random and tpe need it"),
        ({"trials": 3}, "a grid has none"),
        ({"sampler": "bayes"}, "it must be 'grid', 'random' or 'tpe'"),
        ({"asha": {"min_iterations": 1, "reduction_factor": 1}}, "greater than or equal to 2"),
        ({"paramters": {}}, "unknown key `paramters`"),
    ],
)
def test_what_is_wrong_is_said(load, changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": {"algorithm.lamm": [0.9, 1]}}, r"with lamm=0.9: unknown key.*did you mean"),
        ({"parameters": {"preset": ["vagen_full", "ppo"]}}, "with preset=ppo: unknown preset"),
        ({"asha": {"min_iterations": 61}}, "and the last validation is after iteration 60"),
        (
            {
                "overrides": ["trainer.test_freq=0", "trainer.select=last"],
                "sampler": "tpe",
                "trials": 2,
            },
            "there is no validation: set trainer.test_freq",
        ),
    ],
)
def test_trials_that_cannot_run_are_refused_before_anything_is_computed(
    load, changes: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        check_sweep(load(**changes))


@pytest.mark.parametrize("name", ["presets-seeds", "learning-rates"])
def test_the_examples_can_run(name: str):
    assert check_sweep(load_sweep(name, name=None, overrides=[]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep"], "which sweep"),
        (["sweep", "preset-seeds"], "unknown sweep `preset-seeds`; did you mean `presets-seeds`?"),
        (["sweep", "presets-seeds", "--jobs", "0"], "at least one trial at a time"),
        (["run", "--seeds", "0-x"], "names no seeds"),
        (["run", "--seeds", "0-1", "--pipeline"], "leave out --pipeline"),
    ],
)
def test_command_lines_that_make_no_sense(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(words) == USER_ERROR
    assert message in capsys.readouterr().err
