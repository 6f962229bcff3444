"""What says that nothing is learnt: once, when it has lasted."""

from vagen.learning.early_stop import PATIENCE, no_learning_warnings

LEARNS = {"train/success": 0.2, "train/format_correct": 0.9, "rollout/zero_std_groups": 0.5}


def told(rows: list[dict[str, float]]) -> list[int]:
    """Iterations after which something is said."""
    return [
        n
        for n in range(1, len(rows) + 1)
        if no_learning_warnings(rows[max(n - PATIENCE - 1, 0) : n])
    ]


def test_it_is_said_after_ten_iterations_and_not_again() -> None:
    stuck = {**LEARNS, "train/success": 0.0}
    assert told([stuck] * 25) == [10]
    assert told([LEARNS] * 7 + [stuck] * 15) == [17]
    assert told([stuck] * 9 + [LEARNS] + [stuck] * 12) == [20]
    assert told([LEARNS] * 30) == []


def test_each_sign_is_of_its_own_metric() -> None:
    for sign, word in (
        ({"train/format_correct": 0.0}, "layout"),
        ({"train/success": 0.0}, "succeeded"),
        ({"rollout/zero_std_groups": 1.0}, "varied"),
    ):
        (text,) = no_learning_warnings([{**LEARNS, **sign}] * PATIENCE)
        assert word in text
    assert no_learning_warnings([{}] * PATIENCE) == []
