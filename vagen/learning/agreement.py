"""Agreement of the log-probabilities of rollout and trainer.

Both compute the probability of every sampled token. PPO's ratio, importance weights and KL terms
are only valid if the two agree up to rounding.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vagen.config.trainer_options import AgreementConfig
from vagen.learning.kl import LOG_RATIO_LIMIT
from vagen.metrics import PROBABILITY_CORRELATION, RATIO_MEAN

MIN_DEVIATION = 0.01
"""Below this standard deviation there is no correlation: rounding would dominate it."""
CAUSES = (
    "usually one of them leaves out tokens or scales logits as the other does not (top_p, top_k, "
    "temperature, bans), has other weights (an update that did not arrive), or reads other pixels "
    "(another image processor, frames that are resized; `vagen plan` says which): docs/stability.md"
)


def measure_agreement(
    trainer: NDArray[np.float32], rollout: NDArray[np.float32]
) -> dict[str, float]:
    """Metrics of trainer and rollout log-probabilities [tokens] of every sampled token.

    The mean of pi_trainer / pi_rollout over sampled tokens estimates the probability that the
    trainer gives to the rollout's support. It is 1, whatever their other differences, if neither
    excludes tokens of the other and the rollout samples from its reported distribution.
    """
    ratio = np.exp(np.clip(trainer - rollout, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), dtype=np.float64)
    metrics = {
        "rollout/logprob_difference_max": float(np.abs(trainer - rollout).max()),
        "rollout/kl": float((rollout - trainer).mean()),
        RATIO_MEAN: float(ratio.mean()),
    }
    trained, sampled = np.exp(trainer, dtype=np.float64), np.exp(rollout, dtype=np.float64)
    if max(trained.std(), sampled.std()) >= MIN_DEVIATION:
        varies = min(trained.std(), sampled.std()) > 0
        found = float(np.corrcoef(trained, sampled)[0, 1]) if varies else 0.0
        metrics[PROBABILITY_CORRELATION] = found
    return metrics


def disagreement(config: AgreementConfig, metrics: Mapping[str, float]) -> str | None:
    """The disagreement in an iteration's metrics; None without one, or if no token was sampled."""
    found = []
    ratio, correlation = metrics.get(RATIO_MEAN), metrics.get(PROBABILITY_CORRELATION)
    if ratio is not None and not abs(ratio - 1) <= config.max_ratio_error:
        found.append(
            f"the mean ratio of their probabilities is {ratio:.4f}, further from 1 than "
            f"trainer.agreement.max_ratio_error = {config.max_ratio_error:g}"
        )
    if correlation is not None and not correlation >= config.min_correlation:
        found.append(
            f"their correlation is {correlation:.4f}, below trainer.agreement.min_correlation = "
            f"{config.min_correlation:g}"
        )
    if not found:
        return None
    return (
        f"rollout and trainer do not agree on the sampled tokens: {', and '.join(found)}; {CAUSES}"
    )
