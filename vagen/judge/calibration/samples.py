"""Statements of a calibration: texts of every kind about states of real episodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from vagen.envs import parse_env_config
from vagen.judge.calibration.claims import ClaimWriter
from vagen.judge.calibration.writer import Scene, Text, TextKind, sample_scenes

SHARES = {
    TextKind.TRUE: 0.4,
    TextKind.FALSE: 0.25,
    TextKind.PARTIAL: 0.1,
    TextKind.VAGUE: 0.05,
    TextKind.TEMPLATE: 0.05,
    TextKind.ADVERSARIAL: 0.15,
}
"""Shares of the kinds of statements."""
_TRIES = 100
"""Number of states to try in order to find one that makes a statement false."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A statement with its truth."""

    kind: TextKind
    text: str
    wording: str
    scene: Scene
    section: str
    """`observation`, or `prediction` about a next state."""


def sample_statements(
    writer_class: type[ClaimWriter], env_configs: Sequence[dict[str, Any]], count: int, seed: int
) -> list[Sample]:
    """Statements about states of an environment, of all kinds, in random order."""
    rng = Random(f"statements {seed}")
    name = writer_class.env_name
    writers = [writer_class(parse_env_config(name, env_config)) for env_config in env_configs]
    scenes = sample_scenes(name, env_configs, max(count // 4, 2 * len(env_configs)), seed)
    pools = [[scene for scene in scenes if scene.variant == n] for n in range(len(writers))]
    samples: list[Sample] = []
    for kind, share in SHARES.items():
        for number in range(round(share * count)):
            variant = number % len(writers)
            writer, scene = writers[variant], rng.choice(pools[variant])
            text = _write(writer, kind, number, scene, pools[variant], rng)
            if text is not None:
                section = "prediction" if rng.random() < 0.5 else "observation"
                section = text.section or section
                samples.append(Sample(kind, text.text, text.wording, scene, section))
    rng.shuffle(samples)
    return samples


def _write(
    writer: ClaimWriter, kind: TextKind, number: int, scene: Scene, pool: list[Scene], rng: Random
) -> Text | None:
    state = scene.state
    match kind:
        case TextKind.TRUE:
            return writer.true(rng, state)
        case TextKind.FALSE:
            for _ in range(_TRIES):
                other = rng.choice(pool).state
                text = writer.true(rng, other)
                if writer.differs(text, state, other):
                    return text
            return None
        case TextKind.PARTIAL:
            return writer.partial(rng, state)
        case TextKind.VAGUE:
            return writer.vague(rng, state)
        case TextKind.TEMPLATE:
            place = number % len(writer.templates)
            return Text(writer.templates[place], f"template {place + 1}")
    for _ in range(_TRIES):
        other = rng.choice(pool).state
        if writer.opposes(state, other):
            break
    else:
        return None
    return writer.adversarial(rng, number, state, other)
