"""Layers, overrides and messages."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.config import ConfigError, config_digest, dump_yaml
from vagen.config.yaml_io import parse_value, parse_yaml
from vagen.envs import env_config_digest
from vagen.experiment.load import load_experiment, load_infra

BASE = """\
name: lake
preset: vagen_full
envs:
  lake:
    env_name: FrozenLake
    env_config:
      size: 4
algorithm:
  lam: 0.9
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "lake.yaml"
    path.write_text(BASE)
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, overrides)
    return str(caught.value)


def test_each_layer_wins_over_the_one_below(experiment: Path) -> None:
    config = load_experiment(experiment, ["algorithm.lam=0.8"])
    assert config.algorithm.lam == 0.8, "override over file"
    assert load_experiment(experiment).algorithm.lam == 0.9, "file over preset"
    assert config.algorithm.adv_estimator == "bi_level_gae", "preset over default"
    assert config.rollout_manager.max_turns == 3, "default"


def test_override_of_the_preset_takes_the_other_presets_values(experiment: Path) -> None:
    config = load_experiment(experiment, ["preset=vagen_base"])
    assert config.algorithm.adv_estimator == "masked_gae"
    assert config.algorithm.lam == 0.9


def test_a_section_given_in_part_keeps_its_defaults_where_it_stands(experiment: Path) -> None:
    config = load_experiment(experiment, ["critic.optim.weight_decay=0.1"])
    assert config.critic.optim.lr == 1e-5
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6


def test_environment_options_are_filled_in_and_overridable(experiment: Path) -> None:
    options = load_experiment(experiment, ["envs.lake.env_config.tile_size=48"]).envs["lake"]
    assert options.env_config["tile_size"] == 48
    assert options.env_config["size"] == 4
    assert options.env_config["prompt_format"] == "grounding_worldmodeling", "from the preset"
    assert options.env_config["is_slippery"] is False, "from the environment"


def test_an_override_may_be_a_section(experiment: Path) -> None:
    words = ["actor_rollout_ref.actor.optim={lr: 0.5, weight_decay: 0}"]
    optim = load_experiment(experiment, ["preset=vagen_full", *words]).actor_rollout_ref.actor.optim
    assert (optim.lr, optim.weight_decay) == (0.5, 0.0)
    assert "(override `judge={judge: 1}`)" in refusal(experiment, "judge={judge: 1}")


def test_an_environment_can_be_added_by_overrides(experiment: Path) -> None:
    config = load_experiment(experiment, ["envs.boxes.env_name=Sokoban"])
    assert list(config.envs) == ["lake", "boxes"]
    assert config.envs["boxes"].env_config["prompt_format"] == "grounding_worldmodeling"


def test_empty_sections_change_nothing(tmp_path: Path, experiment: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(BASE + "trainer:\ncritic:\n  optim:\n")
    assert load_experiment(path) == load_experiment(experiment)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("3", 3),
        ("null", None),
        ("", None),
        ("true", True),
        ("[1, 2.5e-1]", [1, 0.25]),
        ("grpo", "grpo"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
    ],
)
def test_override_values_are_typed(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_as_itself(value: float) -> None:
    assert parse_value(repr(value)) == value


@given(st.integers())
def test_every_integer_is_read_as_itself(value: int) -> None:
    parsed = parse_value(str(value))
    assert parsed == value
    assert isinstance(parsed, int)


def test_unknown_key_names_file_line_and_nearest(experiment: Path) -> None:
    experiment.write_text(BASE + "  lamda: 0.5\n")
    assert refusal(experiment) == (
        f"unknown key `algorithm.lamda` ({experiment}:10); did you mean `algorithm.lam`?"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "algorithm.lamda=1",
            "`algorithm.lamda` (override `algorithm.lamda=1`); did you mean `algorithm.lam`?",
        ),
        ("lr=1", "`actor_rollout_ref.actor.optim.lr` or `critic.optim.lr` or `warm_start.lr`?"),
        ("trainer.zzz=1", "`trainer` has: total_training_steps, test_freq"),
        ("algoritm.lam=1", "unknown key `algoritm`"),
        ("envs.lake.env_config.sise=4", "did you mean `envs.lake.env_config.size`?"),
        ("envs.lake.env_config.tags.anwser=a", "did you mean `envs.lake.env_config.tags.answer`?"),
        ("envs.lak.env_config.size=4", "did you mean the id `lake`?"),
        ("envs.lake.env_name=FrozenLak", "environment `FrozenLak`; did you mean `FrozenLake`?"),
        ("envs.lake.env_config.prompt_format=fre_think", "it must be 'no_think', 'free_think'"),
        ("envs.lake.env_config.expert_actions_per_turn=9", "only max_actions_per_step = 3"),
        (
            "algorithm.lam=2",
            "is 2 (override `algorithm.lam=2`); it should be less than or equal to 1",
        ),
        ("algorithm.lam.x=1", "`algorithm.lam` is {'x': 1} (override `algorithm.lam.x=1`)"),
        ("algorithm.kl_ctrl.kl_coef=.inf", "it should be a finite number"),
        ("data.train_batch_size=many", "`data.train_batch_size` is 'many'"),
        ("judge=3", "`judge` is 3 (override `judge=3`); it must be a section"),
        ("envs=[]", "`envs` is []"),
        ("name=a/b", "`name` is 'a/b'"),
        (
            "actor_rollout_ref.actor.clip_ratio=0.2",
            "; here: `actor_rollout_ref.actor.clip_ratio_low` ",
        ),
        ("actor.clip_ratio=0.2", "clip_ratio here: `actor_rollout_ref.actor.clip_ratio_low` and"),
        ("actor_rollout_ref.rollout.n=8", "; here: `rollout_manager.n_trajectory`"),
        (
            "rollout.n=8",
            "unknown key `rollout` (override `rollout.n=8`); n here: `rollout_manager.",
        ),
        ("trainer.nnodes=2", "; here: `infra.verl.nnodes`"),
        ("trainer.resume_mode=auto", "; here: `vagen resume RUN` goes on with a run"),
        ("actor_rollout_ref.rollout.name=vllm", "; here: `infra.verl.rollout`"),
        ("algorithm.use_kl_in_reward=true", "; here: `algorithm.kl_ctrl.kl_coef`; 0 is off"),
        ("actor_rollout_ref.ref.fsdp_config.param_offload=true", "here: the reference is laid out"),
        ("actor_rollout_ref.rollout.multi_turn.max_turns=3", "here: `rollout_manager.max_turns`"),
        ("es_manager.train.group_size=16", "train.group_size here: `rollout_manager.n_trajectory`"),
        ("+algorithm.gamma=1", "begins with Hydra's +: write `algorithm.gamma=value`"),
        ("preset=vagen_ful", "unknown preset `vagen_ful`; did you mean `vagen_full`?"),
        ("preset=[vagen_full]", "unknown preset"),
        ("algorithm.adv_estimator=gea", "unknown estimator `gea`; did you mean `gae`?"),
        ("algorithm.lam", "`algorithm.lam` is not an override; write `dotted.key=value`"),
        (".lam=1", "is not an override"),
        ("algorithm.lam=[", "override `algorithm.lam=[`: '[' is not a YAML value"),
    ],
)
def test_wrong_overrides_say_what_is_wrong(experiment: Path, override: str, message: str) -> None:
    assert message in refusal(experiment, override)


def test_a_type_error_names_the_preset_or_file_that_set_it(experiment: Path) -> None:
    experiment.write_text(BASE.replace("lam: 0.9", "lam: much"))
    assert f"`algorithm.lam` is 'much' ({experiment}:9)" in refusal(experiment)


def test_all_mistakes_are_told_at_once(experiment: Path) -> None:
    lines = refusal(experiment, "trainer.x=1", "algorithm.gamma=2", "judge.y=1").splitlines()
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: a\nname: b\n", ":2: `name` stands twice"),
        ("a: [1\n", "is not valid YAML: line"),
        ("- 1\n", "must hold `key: value` lines"),
        ("", "`name` is missing"),
        ("name: a\nenvs: {}\n", "`envs` is empty"),
        ("1: a\n", "the key `1` is not text"),
        ("name: x\n<<: {a: 1}\n", "merge keys"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(content)
    assert message in refusal(path)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: \xe9\n")
    assert "cannot be read" in refusal(path)
    assert refusal(tmp_path / "none.yaml") == f"there is no file {tmp_path / 'none.yaml'}"


def test_names_are_found_in_the_current_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.yaml").write_text(BASE)
    (tmp_path / "experiments" / "frozenlake-tiny.yaml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    assert load_experiment("mine").name == "lake"
    assert load_experiment("frozenlake-tiny").name == "lake"
    with pytest.raises(ConfigError, match="unknown experiment `mein`; did you mean `mine`"):
        load_experiment("mein")


def test_the_resolved_file_gives_the_same_experiment(experiment: Path, tmp_path: Path) -> None:
    config = load_experiment(experiment, ["algorithm.high_level_lam=0.5"])
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump_yaml(config))
    assert load_experiment(resolved) == config
    assert config_digest(load_experiment(resolved)) == config_digest(config)


def test_the_digest_follows_every_value_and_no_order(experiment: Path, tmp_path: Path) -> None:
    config = load_experiment(experiment)
    assert config_digest(load_experiment(experiment, ["seed=1"])) != config_digest(config)
    lines = BASE.splitlines(keepends=True)
    other = tmp_path / "reordered.yaml"
    other.write_text("".join([*lines[7:], *lines[:7]]))
    assert config_digest(load_experiment(other)) == config_digest(config)


def test_infra_defaults_files_and_overrides(tmp_path: Path) -> None:
    assert load_infra() == load_infra("laptop")
    assert load_infra("laptop", ["device=cuda:1", "threads=2"]).device == "cuda:1"
    for override in ("device=gpu", "threads=0", "mode=fast", "devise=cpu"):
        with pytest.raises(ConfigError, match=override.partition("=")[0]):
            load_infra(None, [override])


def test_a_later_option_changes_the_digest_only_where_it_is_used(experiment: Path) -> None:
    """So that runs made without it can be resumed."""
    config = load_experiment(experiment)
    values = config.model_dump(mode="json")
    del values["trainer"]["early_stop"]["empty_batches"]
    del values["trainer"]["select"]
    del values["trainer"]["keep_iterations"]
    del values["algorithm"]["filter_groups"]
    del values["actor_rollout_ref"]["rollout"]["val_kwargs"]["n"]
    del values["judge"]["repetition"]["top_k"]
    del values["judge"]["above_chance"]
    del values["actor_rollout_ref"]["model"]["freeze_vision_tower"]
    del values["actor_rollout_ref"]["actor"]["use_rollout_log_probs"]
    del values["actor_rollout_ref"]["actor"]["policy_loss"]
    del values["actor_rollout_ref"]["actor"]["entropy_ctrl"]
    del values["algorithm"]["overlong"]
    del values["data"]["curriculum"]
    del values["algorithm"]["whitening"], values["algorithm"]["bi_level_mix"]
    for option in ("turn_reward_budget", "on_stalling", "whole_turns", "keep_cost"):
        del values["rollout_manager"][option]
    for option in (
        "over_sampling_batch_size",
        "thinking_budget",
        "reward_placement",
        "compact_budget",
    ):
        del values["rollout_manager"][option]
    del values["critic"]["warmup_epochs"]
    for option in ("data", "episodes", "random_moves", "optimizer"):
        del values["warm_start"][option]
    for network in (values["actor_rollout_ref"]["actor"], values["critic"]):
        for option in ("lr_scheduler_type", "min_lr_ratio"):
            del network["optim"][option]
    # Options that are gone.
    client = {"max_backoff": 30.0, "breaker_failures": 8, "breaker_cooldown": 5.0}
    judge = values["judge"]
    for section, fixed in (
        (judge["llm"], client),
        (judge["second"]["llm"], client),
        (judge["alarm"], {"min_rise": 0.05, "min_fall": 0.05}),
        (judge["information"], {"states": 16}),
        (judge["repetition"], {"similarity": 0.7}),
        (values["trainer"]["guard"], {"min_history": 4}),
        (values["warm_start"], {"stop_at_loss": None}),
        (
            values["algorithm"]["adaptive_credit"],
            {"ema_decay": 0.9, "gamma_low": 0.85, "gamma_high": 0.995, "gamma_slope": 1.0},
        ),
    ):
        section.update(fixed)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    assert config_digest(config) == hashlib.sha256(text.encode()).hexdigest()
    used = load_experiment(experiment, ["judge.repetition.top_k=5"])
    assert config_digest(used) != config_digest(config)
    (spec,) = config.envs.values()
    assert not {"memory"} & {*spec.env_config, *spec.env_config["tags"]}
    asked = env_config_digest(spec.env_name, {**spec.env_config, "memory": True})
    assert asked != env_config_digest(spec.env_name, spec.env_config)


def test_an_option_that_is_gone_may_stand_with_the_value_it_has_now(experiment: Path) -> None:
    """As in the file of an older run, which has every option."""
    config = load_experiment(experiment)
    gone = ["trainer.guard.min_history=4", "judge.second.llm.max_backoff=30.0"]
    assert load_experiment(experiment, gone) == config
    with pytest.raises(ConfigError) as error:
        load_experiment(experiment, ["trainer.guard.min_history=5", "judge.llm.max_backoff=1"])
    assert str(error.value) == (
        "`judge.llm.max_backoff` (override `judge.llm.max_backoff=1`) is no option any more, it is "
        "always 30.0; leave it out\n"
        "`trainer.guard.min_history` (override `trainer.guard.min_history=5`) is no option any "
        "more, it is always 4; leave it out"
    )
    assert load_infra(None, ["s3.ca_bundle=null"]) == load_infra(None)
    with pytest.raises(ConfigError, match=r"always null; AWS_CA_BUNDLE names a file"):
        load_infra(None, ["s3.ca_bundle=/etc/ca.pem"])


def test_aliases_that_grow_without_end_are_refused():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{k}: &a{k} [{', '.join(10 * [f'*a{k - 1}'])}]" for k in range(1, 9)]
    with pytest.raises(ConfigError, match="bomb holds more than 100,000 values"):
        parse_yaml("\n".join(rows), "bomb")
    for text in ("&a [*a]", "{a: &a [x, *a]}"):
        with pytest.raises(ConfigError, match="holds more than"):
            parse_value(text)
    assert parse_value("[&a {x: 1}, *a]") == [{"x": 1}, {"x": 1}]
