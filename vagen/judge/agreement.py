"""How far two judges agree."""

from collections.abc import Sequence

RIGHT = 0.5
"""Score from which a statement counts as right."""


def cohen_kappa(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Cohen's kappa of two judges' verdicts on the same statements (Cohen 1960).

    Args:
        first: Whether the first judge took each statement for right.
        second: Whether the second did.

    Returns:
        1 where they always agree, 0 where they agree as often as chance would have it. None where
        chance would have them always agree: both gave one and the same verdict throughout, or there
        are no statements.
    """
    count = len(first)
    if not count:
        return None
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / count
    p, q = sum(first) / count, sum(second) / count
    expected = p * q + (1 - p) * (1 - q)
    return None if expected == 1 else (agreed - expected) / (1 - expected)
