"""The controller of the entropy bonus."""

import json
import math

import pytest
import torch

from vagen.learning import EntropyController, entropy_from_logits


def make(**changes) -> EntropyController:
    return EntropyController(
        **{"target": 0.5, "step": 0.02, "max_coeff": 0.05, "coeff": 0.01, **changes}
    )


def test_the_weight_rises_below_the_target_and_is_nothing_above():
    controller = make()
    assert controller.weight == 0.01, "of the first update"
    seen = []
    for entropy in (0.4, 0.3, 0.2, 0.6, 0.5, 0.4, 0.7, 0.7, 0.7, 0.7, 0.1):
        controller.update(entropy)
        seen.append((round(controller.coeff, 9), round(controller.weight, 9)))
    coefficients = [0.03, 0.05, 0.05, 0.03, 0.03, 0.05, 0.03, 0.01, 0.0, 0.0, 0.02]
    weights = [0.03, 0.05, 0.05, 0.0, 0.03, 0.05, 0.0, 0.0, 0.0, 0.0, 0.02]
    assert seen == list(zip(coefficients, weights, strict=True))


@pytest.mark.parametrize("entropy", [math.nan, math.inf])
def test_an_update_without_an_entropy_changes_nothing(entropy):
    controller = make()
    controller.update(entropy)
    assert controller == make()


def test_a_stored_controller_goes_on_where_it_stopped():
    """Exactly, of numbers that have no short decimal form."""
    straight, resumed = make(coeff=1 / 70), make()
    straight.update(0.6)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    assert resumed == straight and resumed.weight == 0.0
    for controller in (straight, resumed):
        controller.update(0.1)
    assert resumed == straight and resumed.weight > 0.0


@pytest.mark.slow
def test_a_policy_that_would_collapse_is_held_at_the_target():
    """One token of five pays: its exact policy gradient ends all exploration without the bonus."""
    pays = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])

    def end(controller: EntropyController | None) -> list[float]:
        logits = torch.zeros(5, requires_grad=True)
        optimizer = torch.optim.SGD([logits], lr=1.0)
        seen = []
        for _ in range(2_000):
            entropy = entropy_from_logits(logits)
            weight = 0.0 if controller is None else controller.weight
            loss = -(logits.softmax(-1) * pays).sum() - weight * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(float(entropy.detach()))
            if controller is not None:
                controller.update(seen[-1])
        return seen[-200:]

    assert max(end(None)) < 0.05
    held = end(EntropyController(target=0.5, step=0.01, max_coeff=1.0, coeff=0.0))
    assert min(held) > 0.4 and max(held) < 0.6
