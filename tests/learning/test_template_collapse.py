"""Template-collapse measures on matrices whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.learning.template_collapse import template_collapse


def test_it_is_the_mutual_information_of_a_known_channel():
    """Uniform prompts through a noisy channel, each response as often as it is drawn."""
    channel = np.array([[0.75, 0.25, 0.0], [0.0, 0.75, 0.25], [0.25, 0.0, 0.75]])
    pairs = [(x, z) for x in range(3) for z in range(3) for _ in range(round(4 * channel[x, z]))]
    with np.errstate(divide="ignore"):
        cross = np.log(np.array([[channel[x, z] for _, z in pairs] for x, _ in pairs]))
    entropy_given = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    found = template_collapse(cross)
    assert found.entropy == pytest.approx(np.log(3))
    assert found.conditional_entropy == pytest.approx(entropy_given)
    assert found.mutual_information == pytest.approx(np.log(3) - entropy_given)


@given(st.integers(2, 8), st.integers(0, 9))
def test_by_the_formula_and_whatever_the_order(n, seed):
    rng = np.random.default_rng(seed)
    cross = rng.uniform(-50, 0, (n, n))
    expected = np.mean(
        [cross[i, i] - np.log(np.exp(cross[:, i]).sum()) + np.log(n) for i in range(n)]
    )
    found = template_collapse(cross)
    assert found.mutual_information == pytest.approx(expected)
    assert found.retrieval_accuracy == np.mean(cross.argmax(0) == np.arange(n))
    assert found.mutual_information <= np.log(n) + 1e-12
    order = rng.permutation(n)
    assert template_collapse(cross[np.ix_(order, order)]).mutual_information == pytest.approx(
        found.mutual_information
    )


@pytest.mark.parametrize("shape", [(0, 0), (2, 3), (4,)])
def test_a_matrix_that_is_not_square_is_refused(shape):
    with pytest.raises(ValueError, match=r"it must be \[N, N\]"):
        template_collapse(np.zeros(shape))
