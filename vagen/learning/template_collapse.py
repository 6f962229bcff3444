"""Dependence of responses on their prompts: the template-collapse measures of RAGEN v2.

Entropy can stay high while every prompt gets the same kind of answer: `H(Z) = I(X; Z) + H(Z | X)`,
and template collapse is a drop of the first term (arXiv 2604.06268).

Shape legend: N pairs of a prompt x_i and the response z_i sampled for it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TemplateCollapse:
    """Measures of a cross log-probability matrix; nats per response."""

    mutual_information: float
    """Estimate of I(X; Z), between 0 and log N for well-separated prompts; see
    `template_collapse`."""
    retrieval_accuracy: float
    """Share of responses that are most probable under their own prompt."""
    entropy: float
    """Estimate of H(Z), the entropy of responses over all prompts."""
    conditional_entropy: float
    """Estimate of H(Z | X), the entropy of responses to a given prompt."""


def template_collapse(logprobs_NN: NDArray[np.floating]) -> TemplateCollapse:
    """Measures template collapse; with L_ij = log p(z_j | x_i):

        H(Z | X) ~ mean_i [ -L_ii ]
        H(Z)     ~ mean_i [ -(logsumexp_k L_ki - log N) ]
        I(X; Z)  ~ mean_i [ L_ii - logsumexp_k L_ki + log N ]  =  H(Z) - H(Z | X)
        accuracy = mean_j [ argmax_i L_ij = j ]

    Normalising over prompts for a fixed response cancels its length. The estimate of I is at most
    log N, so more prompts resolve larger differences. Where n prompts, including its own, explain a
    response equally well and best, it counts 1/n in the accuracy.

    Args:
        logprobs_NN: L, [N, N] with prompts as rows: log-probability of a whole response, summed
            over its tokens. N is at least 1.

    Raises:
        ValueError: It is not square, or empty.
    """
    cross = np.asarray(logprobs_NN, dtype=np.float64)
    if cross.ndim != 2 or cross.shape[0] != cross.shape[1] or not cross.size:
        raise ValueError(f"cross log-probabilities have shape {cross.shape}; it must be [N, N]")
    own = np.diagonal(cross)
    marginal = np.logaddexp.reduce(cross, axis=0) - np.log(len(cross))
    best = cross.max(0)
    hits = np.where(own == best, 1.0 / (cross == best).sum(0), 0.0)
    return TemplateCollapse(
        mutual_information=float((own - marginal).mean()),
        retrieval_accuracy=float(hits.mean()),
        entropy=float(-marginal.mean()),
        conditional_entropy=float(-own.mean()),
    )
