"""Rollout against trainer: what the measures see of distributions that tokens are drawn from."""

import numpy as np
import pytest

from vagen.config.trainer_options import AgreementConfig
from vagen.learning.agreement import disagreement, measure_agreement
from vagen.metrics import PROBABILITY_CORRELATION, RATIO_MEAN

CONFIG = AgreementConfig()
TOKENS, VOCABULARY = 20_000, 50


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    """A trainer's, [tokens, vocabulary]: some certain, some not."""
    rng = np.random.Generator(np.random.Philox(3))
    scale = rng.uniform(0.5, 6.0, (TOKENS, 1))
    return rng.normal(size=(TOKENS, VOCABULARY)) * scale


def found(trainer: np.ndarray, rollout: np.ndarray) -> dict[str, float]:
    """Metrics of tokens drawn from the rollout's logits."""
    rng = np.random.Generator(np.random.Philox(4))
    theirs, ours = log_softmax(rollout), log_softmax(trainer)
    drawn = (theirs + rng.gumbel(size=theirs.shape)).argmax(-1)
    rows = np.arange(len(drawn))
    return measure_agreement(
        ours[rows, drawn].astype(np.float32), theirs[rows, drawn].astype(np.float32)
    )


def test_rounding_is_no_disagreement(logits):
    rng = np.random.Generator(np.random.Philox(5))
    rounded = logits * (1 + rng.normal(size=logits.shape) * 2**-8)
    metrics = found(logits, rounded)
    assert metrics["rollout/logprob_difference_max"] > 0.05
    assert metrics[RATIO_MEAN] == pytest.approx(1, abs=2e-3)
    assert metrics[PROBABILITY_CORRELATION] > 0.99
    assert disagreement(CONFIG, metrics) is None


def test_top_p_moves_the_ratio_by_the_mass_it_cuts_off(logits):
    probs = np.exp(log_softmax(logits))
    order = np.argsort(-probs, -1)
    ordered = np.take_along_axis(probs, order, -1)
    cut = np.zeros_like(probs, bool)
    np.put_along_axis(cut, order, ordered.cumsum(-1) - ordered >= 0.95, -1)
    metrics = found(logits, np.where(cut, -1e9, logits))
    assert metrics[RATIO_MEAN] == pytest.approx((probs * ~cut).sum(-1).mean(), abs=2e-3)
    assert "max_ratio_error" in str(disagreement(CONFIG, metrics))


@pytest.mark.parametrize("change", [lambda x: x / 0.5, lambda x: np.roll(x, 1, 0)])
def test_other_temperatures_and_other_weights_are_uncorrelated(logits, change):
    text = str(disagreement(CONFIG, found(logits, change(logits))))
    assert "min_correlation" in text
    assert "temperature" in text and "other weights" in text


def test_what_has_no_number_is_no_agreement():
    broken = np.full(4, np.nan, np.float32)
    assert disagreement(CONFIG, measure_agreement(broken, broken)) is not None
    assert disagreement(CONFIG, {}) is None, "an iteration without a sampled token"


def test_certain_tokens_have_no_correlation():
    """Rounding of probabilities that are all 1 would be all of it."""
    sure = np.array([-1e-4, -2e-4, -1e-4], np.float32)
    metrics = measure_agreement(sure, sure[::-1] * 2)
    assert PROBABILITY_CORRELATION not in metrics
    assert disagreement(CONFIG, metrics) is None
    one_sided = measure_agreement(
        np.log(np.array([0.1, 0.9, 0.5], np.float32)), np.zeros(3, np.float32)
    )
    assert one_sided[PROBABILITY_CORRELATION] == 0
