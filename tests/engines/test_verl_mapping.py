"""The mapping to verl's options, as far as it needs no verl: its document and its completeness."""

from pathlib import Path

from vagen.config.infra import InfraConfig
from vagen.config.schema import ExperimentConfig
from vagen.engines.verl.table import all_settings, replaced

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
    assert text == replaced(text), "run: python -m vagen.engines.verl.table docs/verl.md"


def test_every_source_is_an_option_of_ours() -> None:
    known = leaves(ExperimentConfig) | leaves(InfraConfig, "infra.") | {"experiment", "infra"}
    named = {name for s in all_settings() for name in s.source.split(", ") if name}
    assert named <= known


def test_every_option_of_the_layout_reaches_verl_or_the_plan() -> None:
    named = {name for s in all_settings() for name in s.source.split(", ")}
    layout = {name for name in leaves(InfraConfig, "infra.") if name.startswith("infra.verl.")}
    assert layout - named == {"infra.verl.gpu_memory_gib"}
