"""The soft penalty for long answers, by hand."""

import numpy as np

from vagen.learning import overlong_penalty


def test_the_penalty_begins_at_the_buffer_and_is_whole_at_the_limit():
    """Of 100 tokens the last 40 cost: 70 is a quarter into them, 90 three quarters."""
    lengths = np.array([0, 59, 60, 70, 90, 100])
    penalty = overlong_penalty(lengths, max_length=100, buffer_len=40, penalty_factor=2.0)
    np.testing.assert_allclose(penalty, [0, 0, 0, -0.5, -1.5, -2.0])
