"""The mapping to verl's options, as far as it needs no verl: its document and its completeness."""

import re
from pathlib import Path

import pytest

from tools.docs.verl_options import all_settings, replaced
from vagen.config import ConfigError
from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig
from vagen.config.yaml_io import parse_yaml
from vagen.engines.verl.mapping import EXTRA, settings
from vagen.experiment.load import load_experiment, load_infra

ROOT = Path(__file__).resolve().parents[2]


def leaves(model: type, prefix: str = "") -> set[str]:
    """Dotted names of all options and sections."""
    from vagen.config.errors import section_of

    found = set()
    for name, field in model.model_fields.items():
        found.add(f"{prefix}{name}")
        section, is_mapping = section_of(field.annotation)
        if section is not None and not is_mapping:
            found |= leaves(section, f"{prefix}{name}.")
    return found


def test_the_document_is_current() -> None:
    text = (ROOT / "docs" / "verl.md").read_text(encoding="utf-8")
    assert text == replaced(text), "run: python -m tools.docs.verl_options docs/verl.md"


def test_every_source_is_an_option_of_ours() -> None:
    known = leaves(ExperimentConfig) | leaves(InfraConfig, "infra.") | {"experiment", "infra"}
    named = {name for s in all_settings() for name in s.source.split(", ") if name}
    assert named <= known


def test_every_option_of_the_layout_reaches_verl_or_the_plan() -> None:
    named = {name for s in all_settings() for name in s.source.split(", ")}
    layout = {name for name in leaves(InfraConfig, "infra.") if name.startswith("infra.verl.")}
    planned = {
        f"infra.verl.{name}" for name in ("gpu_memory_gib", "host_memory_gib", "scratch_gib")
    }
    assert layout - named == {*planned, EXTRA}


def test_nested_options_and_dotted_ones_are_the_same() -> None:
    """As a file writes them, and as the command line makes them; the later one stays."""
    text = "engine: verl\nverl:\n  extra: {a.b.c: 1, d: {e: [2], f: {}}}\n"
    infra = load_infra(parse_yaml(text, "infra.yaml"), ["verl.extra.a.b.c=3"])
    assert infra.verl.extra == {"a.b.c": 3, "d.e": [2], "d.f": {}}
    again = InfraConfig.model_validate(infra.model_dump())
    assert again == infra


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("trainer.nnodes", "set `infra.verl.nnodes` instead"),
        ("actor_rollout_ref.actor.strategy", "it is the same for every run"),
        ("actor_rollout_ref.actor.optim", "set `actor_rollout_ref.actor.optim.lr` instead"),
        ("critic.fsdp.mixed_precision.param_dtype", "set `infra.dtype` instead"),
        (
            "critic.ppo_max_token_len_per_gpu",
            "set `infra.verl.max_token_len_per_gpu` and `actor_rollout_ref.actor.ppo_max_token_len`"
            " instead",
        ),
    ],
)
def test_what_an_option_of_ours_sets_cannot_be_passed_through(key: str, advice: str) -> None:
    experiment = load_experiment("frozenlake-tiny")
    infra = load_infra(None, ["engine=verl", f"verl.extra.{key}=1"])
    with pytest.raises(ConfigError, match=re.escape(advice)):
        settings(experiment, infra, "model", cpu=False)
