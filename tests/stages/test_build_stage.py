"""Levels of a run: drawn, disjoint, recorded."""

import json

import pytest

from vagen.config.base import ConfigError
from vagen.envs import LevelError, LevelRef, make
from vagen.rollout.levels import assert_disjoint
from vagen.stages.build import build, load_levels
from vagen.stages.execute import execute
from vagen.storage import CorruptArtifact, read_manifest

SIZES = {"train": 24, "val": 4, "test": 6}


@pytest.fixture
def built(make_run):
    run = make_run()
    build(run)
    return run


def test_splits_share_no_level_and_the_build_says_so(built):
    (level_set,) = load_levels(built)
    hashes = {split: {ref.level_hash for ref in refs} for split, refs in level_set.splits.items()}
    assert {split: len(found) for split, found in hashes.items()} == SIZES
    assert len(set.union(*hashes.values())) == sum(SIZES.values())
    recorded = json.loads((built.levels / "levels.json").read_text())["game"]
    assert recorded["disjoint"] is True
    assert {split: len(recorded[split]) for split in SIZES} == SIZES
    assert read_manifest(built.levels).payload["disjoint"] is True


def test_recorded_levels_are_those_that_the_environment_loads(built):
    (level_set,) = load_levels(built)
    for split, refs in level_set.splits.items():
        env = make("FrozenLake", level_set.spec.env_config, split)
        for ref in refs[:3]:
            _, info = env.reset(seed=ref.seed)
            assert info["level_hash"] == ref.level_hash


@pytest.mark.parametrize(("given", "told"), [(1, 1), (3, 0)])
def test_an_expert_below_what_its_options_allow_is_told_of(make_run, monkeypatch, given, told):
    notes = []
    monkeypatch.setattr("vagen.stages.build.progress.note", notes.append)
    options = ("max_actions_per_step=3", f"expert_actions_per_turn={given}")
    build(make_run(*(f"envs.game.env_config.{option}" for option in options)))
    assert len([note for note in notes if "the expert wins" in note]) == told


def test_a_level_in_two_splits_is_refused():
    shared = LevelRef(3, "a" * 64)
    with pytest.raises(ConfigError, match=r"envs.game: level aaaaaaaaaaaa is in .* train and test"):
        assert_disjoint("game", {"train": [shared], "val": [], "test": [LevelRef(9, "a" * 64)]})
    assert_disjoint("game", {"train": [shared], "test": [LevelRef(3, "b" * 64)]})


def test_building_again_changes_nothing(built):
    before = (built.levels / "manifest.json").read_bytes()
    assert execute(built, build)["sha256"] == read_manifest(built.levels).digest
    assert (built.levels / "manifest.json").read_bytes() == before


def test_changed_levels_are_refused(built):
    path = built.levels / "levels.json"
    path.write_text(path.read_text().replace("true", "false"))
    with pytest.raises(CorruptArtifact, match=r"levels\.json is corrupt"):
        load_levels(built)


def test_more_levels_than_there_are(make_run):
    run = make_run("envs.game.env_config.size=2")
    with pytest.raises(LevelError, match="4 distinct levels wanted, but only 1"):
        build(run)
    assert not run.levels.exists()
