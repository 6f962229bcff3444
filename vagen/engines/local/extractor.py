"""Trains the extractor of a judge from scratch, on texts in sentence frames with their claims."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

from vagen.config.schema import WarmStartConfig
from vagen.engines.local.supervised import learn_from_experts
from vagen.envs import parse_env_config
from vagen.judge.calibration.frames import FrameWriter
from vagen.judge.calibration.run import Subject
from vagen.judge.calibration.writer import sample_scenes
from vagen.judge.llm.embedded import extractor_answer, extractor_prompt
from vagen.models import Processor, load_model
from vagen.models.tiny import build_tiny_model
from vagen.rollout.types import TokenRow

SCENES = 400
"""States of each environment that texts are written of."""
VOCABULARY = 1024
CORPUS = 2000
"""Texts that the tokenizer is made of."""


def train_extractor(
    subjects: Sequence[Subject],
    folder: Path,
    config: WarmStartConfig,
    *,
    seed: int = 0,
    helpers: int = 0,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Writes a model directory that `judge.llm.model` can name.

    Args:
        subjects: Environments with their writers, in the training half of frames.
        folder: Is made.
        config: Steps, texts per step and learning rate.
        seed: Decides states, texts and the first weights.
        helpers: Processes that compute beside this one.
        on_step: Called with the step and its loss, nats per token.

    Returns:
        Loss of every step.
    """
    pairs = _pairs(subjects, seed)
    corpus = ["\n".join(pair) for pair in islice(pairs, CORPUS)]
    with tempfile.TemporaryDirectory() as empty:
        build_tiny_model(
            "tiny:text", Path(empty), corpus=corpus, tags=(), seed=seed, vocab_size=VOCABULARY
        )
        language_model = load_model(empty)
    processor = language_model.processor
    losses = learn_from_experts(
        language_model,
        lambda _: ([_row(processor, *pair) for pair in islice(pairs, config.batch_size)], {}),
        config,
        on_step=on_step,
        helpers=helpers,
    )
    language_model.save(folder)
    return losses


def _pairs(subjects: Sequence[Subject], seed: int) -> Iterator[tuple[str, str]]:
    """Prompts and answers without end, of all environments and their variants in turn."""
    rng = Random(f"extractor {seed}")
    sources = []
    for subject in subjects:
        scenes = sample_scenes(subject.env_name, subject.env_configs, SCENES, seed)
        for n, env_config in enumerate(subject.env_configs):
            writer = subject.writer(parse_env_config(subject.env_name, env_config))
            assert isinstance(writer, FrameWriter)
            sources.append((writer, [scene.state for scene in scenes if scene.variant == n]))
    while True:
        for writer, states in sources:
            lesson = writer.lesson(rng, rng.choice(states), rng.choice(states))
            yield (
                extractor_prompt(lesson.section, lesson.text, writer.kinds),
                extractor_answer(lesson.text, lesson.said),
            )


def _row(processor: Processor, prompt: str, answer: str) -> TokenRow:
    tokenizer = processor.tokenizer
    given = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(given, add_special_tokens=False)
    said = [*tokenizer.encode(answer, add_special_tokens=False), processor.eos_id]
    length = len(ids) + len(said)
    return TokenRow(
        trajectory_id="",
        row_index=0,
        input_ids=np.array([*ids, *said], np.int32),
        loss_mask=np.arange(length) >= len(ids),
        turn_index=np.zeros(length, np.int16),
        rollout_logprobs=np.zeros(length, np.float32),
        images=[],
    )
