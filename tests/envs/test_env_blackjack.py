"""Blackjack: the rules against Gymnasium's, the value of the best play, pictures and texts."""

import json
from random import Random

import numpy as np
import pytest
from env_cases import episode
from gymnasium.envs.toy_text.blackjack import BlackjackEnv as GymnasiumBlackjack

from vagen import envs
from vagen.envs.blackjack.cards import table
from vagen.envs.blackjack.game import (
    ACTIONS,
    DRAWS,
    RANKS,
    SUITS,
    Blackjack,
    BlackjackLevel,
    HandValue,
    best_action,
    dealer_totals,
    hit_value,
    outcome_of,
    sample_level,
    stand_value,
    value_of,
)


def cards(text):
    return [(rank, "spades") for rank in text.split()]


class Dealt:
    """Stands for Gymnasium's generator: gives the cards of a deck, in its order of drawing."""

    def __init__(self, deck):
        self.values = [value_of(rank) for rank, _ in deck]

    def choice(self, _):
        return self.values.pop(0)


def test_hands_end_as_in_gymnasium():
    for seed in range(300):
        check_hand(seed)


def check_hand(seed):
    level = sample_level(seed, "train")
    oracle = GymnasiumBlackjack(sab=True)
    # Gymnasium deals the dealer first and draws more dealer cards after the player's.
    deck = list(level.deck)
    oracle.np_random = Dealt(deck[4:])
    oracle.dealer = [value_of(rank) for rank, _ in deck[2:4]]
    oracle.player = [value_of(rank) for rank, _ in deck[:2]]
    game, rng = Blackjack(level), Random(seed)
    while game.outcome is None:
        action = (
            rng.choice(ACTIONS)
            if seed % 2
            else best_action(HandValue.of(game.player), value_of(game.dealer[0][0]))
        )
        (game.hit if action == "Hit" else game.stand)()
        observed, reward, over, _, _ = oracle.step(int(action == "Hit"))
        hand = HandValue.of(game.player)
        assert observed == (hand.total, value_of(game.dealer[0][0]), int(hand.usable_ace))
        assert over == (game.outcome is not None)
    assert reward == {"win": 1.0, "natural": 1.0, "draw": 0.0, "loss": -1.0}[game.outcome]
    assert oracle.dealer == [value_of(rank) for rank, _ in game.dealer]


@pytest.mark.parametrize(
    ("player", "dealer", "outcome"),
    [
        ("A K", "10 9", "natural"),
        ("A K", "A J", "draw"),
        ("A K", "7 7 7", "natural"),
        ("A K", "10 6 9", "natural"),
        ("7 7 7", "A Q", "loss"),
        ("7 7 7", "5 6 J", "draw"),
        ("A 5 5", "10 10", "win"),
        ("10 8", "10 9", "loss"),
        ("2 2", "10 6 6", "win"),
        ("A A 9", "K Q", "win"),
    ],
)
def test_naturals_and_comparisons(player, dealer, outcome):
    assert outcome_of(cards(player), cards(dealer)) == outcome


def optimal_value(natural=1.0):
    """Mean return of a hand under the best play, if a natural pays `natural`."""
    value = 0.0
    for shown, shown_chance in DRAWS:
        for first, first_chance in DRAWS:
            for second, second_chance in DRAWS:
                chance = shown_chance * first_chance * second_chance
                if {first, second} == {1, 10}:
                    value += chance * natural * (1.0 - dealer_totals(shown).get(0, 0.0))
                    continue
                hand = HandValue.counting(first, first == 1).after(second)
                value += chance * max(stand_value(hand, shown), hit_value(hand, shown))
    return value


def test_the_best_play_is_basic_strategy_and_worth_what_is_known():
    """Hit and stand by total and dealer's card, as published for a shoe without doubling."""
    shown = [2, 3, 4, 5, 6, 7, 8, 9, 10, 1]

    def row(total, usable):
        return "".join(best_action(HandValue(total, usable), card)[0] for card in shown)

    assert row(11, False) == "H" * 10 and row(12, False) == "HHSSSHHHHH"
    assert {row(total, False) for total in range(13, 17)} == {"SSSSSHHHHH"}
    assert {row(total, False) for total in range(17, 22)} == {"S" * 10}
    assert row(17, True) == "H" * 10 and row(18, True) == "SSSSSSSHHH"
    assert row(19, True) == "S" * 10
    assert optimal_value() == pytest.approx(-0.0468, abs=1e-4)
    assert optimal_value(1.5) > optimal_value()
    assert sum(dealer_totals(1).values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_expert_wins_what_the_best_play_is_worth_and_chance_far_less():
    env = envs.make("Blackjack", {"render_mode": "text", "prompt_format": "no_think"})
    rng, returns = Random(0), {}
    players = {"expert": None, "random": lambda: f"<answer>{rng.choice(ACTIONS)}</answer>"}
    for player, respond in players.items():
        returns[player] = [
            sum(info["rewards"]["env"] for _, (*_, info) in episode(env, seed, respond))
            for seed in range(6000)
        ]
    deviation = np.std(returns["expert"]) / 6000**0.5
    assert abs(np.mean(returns["expert"]) - optimal_value()) < 3 * deviation
    assert np.mean(returns["random"]) < -0.35


def test_a_natural_is_paid_by_its_own_part():
    deck = (*cards("A K 9 9"), *cards("2 " * 36))
    env = envs.make("Blackjack", {"prompt_format": "no_think", "reward": "vagen-new"})
    env.reset(seed=0)
    env._load_level(BlackjackLevel(tuple(deck), ""), 0)
    env._state = env._read_state()
    *_, terminated, truncated, info = env.step("<answer>stand</answer>")
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["state"]["outcome"] == "natural"
    assert info["rewards"] == {"env": 1.5, "format": 0.1}


def test_observations_are_true_and_predictions_are_the_most_probable():
    env = envs.make("Blackjack", {"render_mode": "text"})
    for seed in range(60):
        for before, (*_, info) in episode(env, seed):
            parsed, after = info["parsed"], info["state"]
            assert parsed["observation"] == env.state_text(before)
            if parsed["actions"] == ["Stand"]:
                assert parsed["prediction"] == env.state_text(after)
            else:
                low = before["sum"] - 10 * before["usable_ace"]
                expected = HandValue.counting(low + 10, before["usable_ace"])
                assert f"sum is {expected.total} " in parsed["prediction"]
            assert json.loads(json.dumps(after)) == after


def test_the_picture_shows_the_cards_of_the_state():
    env = envs.make("Blackjack", {"prompt_format": "no_think"})
    for seed in range(10):
        observation, info = env.reset(seed=seed)
        over = False
        while not over:
            state = info["state"]
            assert len(state["dealer"]) == 1
            player, shown = [tuple(card) for card in state["player"]], tuple(state["dealer"][0])
            expected = table(player, [shown, None], 300)
            assert np.array_equal(observation["images"][0], expected)
            observation, _, over, _, info = env.step(env.expert_response())
        hands = ([tuple(card) for card in info["state"][who]] for who in ("player", "dealer"))
        assert np.array_equal(observation["images"][0], table(*hands, 300))


def test_every_card_looks_different_and_many_fit():
    deck = [(rank, suit) for rank in RANKS for suit in SUITS]
    for side in (96, 300):
        pictures = {table([card, card], [None], side).tobytes() for card in deck}
        assert len(pictures) == 52
    assert table(cards("A " * 21), cards("2 2 2 2"), 300).shape == (300, 300, 3)
