"""Estimators over tokens: GAE, and REINFORCE with or without a greedy baseline."""

import torch
from torch import Tensor

from vagen.advantage.chunks import by_chunks
from vagen.advantage.estimator import estimator
from vagen.advantage.inputs import AdvantageInputs
from vagen.advantage.segments import Selection, gae_scan, reverse_linear_scan


@estimator(
    mask="attention",
    whiten_over="attention",
    value_mask="attention",
    stitches=False,
    reads_padding=True,
)
@by_chunks
def gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Treats every position as an action, like single-turn PPO.

    `d_p = r_p + gamma V_{p+1} - V_p`, `A_p = d_p + gamma lam A_{p+1}`, target `A_p + V_p`
    (Schulman et al. 2016, eq. 16). Advantages are whitened over the attention mask.

    With bootstrap values the recursion ends on a row's last attended token. Without them it
    runs over *all* positions, as in the published trainers: values at padding must then be 0, or
    they act as further bootstrap values. Rows cannot be stitched, since the next row repeats
    history instead of a following action.

    Returns:
        Advantages and returns [B, T], 0 at padding.
    """
    values = inputs.values
    assert values is not None
    bootstrap = inputs.bootstrap_values
    attended = inputs.attention_mask
    positions = Selection.of(torch.ones_like(attended) if bootstrap is None else attended)
    raw = positions.put(
        gae_scan(
            positions,
            positions.take(inputs.rewards),
            positions.take(values),
            None if bootstrap is None else bootstrap[inputs.trajectory_ids],
            gamma=inputs.gamma,
            lam=inputs.lam,
        )
    )
    return torch.where(attended, raw, 0.0), torch.where(attended, raw + values, 0.0)


@estimator(mask="action", whiten_over="loss", value_mask="loss")
@by_chunks
def masked_gae(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """The recursion steps from one sampled token to the next and skips observations.

    With `next(i)` the next sampled token: `d_i = r_i + gamma V_next(i) - V_i`,
    `A_i = d_i + gamma lam A_next(i)`, target `A_i + V_i` (VAGEN, arXiv 2510.16907, section 4.1;
    the recursion is Schulman et al. 2016, eq. 16). Whitened over the loss mask; other tokens of the
    policy loss get the whitened 0, as in VAGEN's own trainer.

    Returns:
        Advantages [B, T], 0 off the action mask, and returns [B, T], 0 off the loss mask.
    """
    assert inputs.values is not None
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    values_N = tokens.take(inputs.values)
    raw_N = gae_scan(
        tokens,
        tokens.take(inputs.rewards),
        values_N,
        inputs.bootstrap_values,
        gamma=inputs.gamma,
        lam=inputs.lam,
    )
    return tokens.put(raw_N), tokens.put(raw_N + values_N)


def returns_to_go(inputs: AdvantageInputs, tokens: Selection) -> Tensor:
    """Discounted reward from each selected token on, [N]: `G_i = r_i + gamma G_next(i)`."""
    return reverse_linear_scan(tokens.take(inputs.rewards), tokens.within(inputs.gamma))


@estimator(mask="loss", whiten_over="loss")
@by_chunks
def reinforce_plus_plus(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """`A_i = G_i = r_i + gamma G_next(i)` over sampled tokens, whitened over the loss mask.

    Source: Hu et al. 2025, arXiv 2501.03262, section 3. Published trainers reset the sum at every
    token off the mask, so that a reward never reaches earlier turns; here the sum skips
    observations.

    Returns:
        Advantages and returns [B, T], 0 off the loss mask.
    """
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    returns = tokens.put(returns_to_go(inputs, tokens))
    return returns, returns


@estimator(mask="loss", needs_baselines=True)
@by_chunks
def remax(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """`A_i = G_i - b` with `G_i = r_i + gamma G_next(i)` over sampled tokens, not whitened.

    `b` is the score of a greedy episode on the same level, so each level costs one more episode.
    Source: Li et al. 2024, arXiv 2310.10505, section 4.1 (with gamma 1).

    Returns:
        Advantages and returns `G` [B, T], 0 off the loss mask.
    """
    assert inputs.baselines is not None
    tokens = Selection.of(inputs.loss_mask, inputs.trajectory_ids)
    returns_N = returns_to_go(inputs, tokens)
    return tokens.put(returns_N - inputs.baselines[tokens.lines]), tokens.put(returns_N)
