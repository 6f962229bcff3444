"""Blackjack as an environment."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vagen.envs.base import Observation, State
from vagen.envs.blackjack import claims
from vagen.envs.blackjack.cards import table
from vagen.envs.blackjack.config import BlackjackConfig
from vagen.envs.blackjack.game import (
    ACTIONS,
    Blackjack,
    BlackjackLevel,
    Hand,
    best_action,
    sample_level,
    value_of,
)
from vagen.envs.claims import Claim
from vagen.envs.levels import Split
from vagen.envs.turns import TurnEnv

LIKELY_CARD = 10
"""The most probable value of the next card (4 of 13)."""


class BlackjackEnv(TurnEnv):
    """Draw cards up to 21; then the dealer draws.

    The expert plays optimally, which loses slightly on average. It predicts random draws as the
    most probable card.
    """

    env_name: ClassVar[str] = "Blackjack"
    config_class: ClassVar[type[BlackjackConfig]] = BlackjackConfig
    claims: ClassVar[tuple[type[Claim], ...]] = claims.CLAIMS
    actions: ClassVar[tuple[str, ...]] = ACTIONS
    example_state: ClassVar[State] = {
        "env_name": "Blackjack",
        "player": [["9", "spades"], ["7", "hearts"]],
        "dealer": [["6", "clubs"]],
        "sum": 16,
        "usable_ace": False,
        "dealer_shows": "6",
        "outcome": None,
    }
    example_actions: ClassVar[tuple[str, ...]] = ("Stand",)

    config: BlackjackConfig

    @classmethod
    def sample_level(cls, config: BlackjackConfig, seed: int, split: Split) -> BlackjackLevel:
        """The deck of `reset(seed=seed)` in this split."""
        return sample_level(seed, split)

    @classmethod
    def truth(cls, state: State, config: BlackjackConfig) -> list[Claim]:
        """The hand and the dealer's first card."""
        return claims.truth(state)

    @classmethod
    def read_claims(cls, text: str, config: BlackjackConfig) -> list[Claim] | None:
        """Parses sentences or the structured notation."""
        return claims.read(text)

    def _frame_size(self) -> tuple[int, int]:
        return self.config.side, self.config.side

    def _load_level(self, level: BlackjackLevel, seed: int) -> None:
        self._game = Blackjack(level)

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Like `TurnEnv.step`; a response without a valid action costs `invalid`."""
        observation, reward, terminated, truncated, info = super().step(action)
        if not info["parsed"]["actions"]:
            info["rewards"]["env"] = self._rewards["invalid"]
            reward = sum(info["rewards"].values())
        return observation, reward, terminated, truncated, info

    def _move(self, action: str) -> tuple[float, bool]:
        if action == "Hit":
            self._game.hit()
        else:
            self._game.stand()
        outcome = self._game.outcome
        return (0.0, False) if outcome is None else (self._rewards[outcome], True)

    def _is_won(self) -> bool:
        return self._game.outcome in ("win", "natural")

    def _read_state(self) -> State:
        game = self._game
        hand = Hand.of(game.player)
        return {
            "env_name": self.env_name,
            "player": [list(card) for card in game.player],
            "dealer": [list(card) for card in game.dealer][: None if self._is_shown() else 1],
            "sum": hand.total,
            "usable_ace": hand.usable_ace,
            "dealer_shows": game.dealer[0][0],
            "outcome": game.outcome,
        }

    def _is_shown(self) -> bool:
        """Whether the dealer has turned the second card."""
        return self._game.outcome is not None

    def _plan(self, count: int) -> list[str]:
        game = self._game
        return [best_action(Hand.of(game.player), value_of(game.dealer[0][0]))]

    def _after(self, state: State, actions: list[str]) -> State:
        # Assumes that a hit draws the most probable card; the dealer's first card stays.
        hand = Hand(state["sum"], state["usable_ace"])
        for action in actions:
            if action == "Hit":
                hand = hand.after(LIKELY_CARD)
        return {**state, "sum": hand.total, "usable_ace": hand.usable_ace}

    def picture(self) -> NDArray[np.uint8]:
        """The table, uint8 [side, side, 3]."""
        game = self._game
        dealer = game.dealer if self._is_shown() else [game.dealer[0], None]
        return table(game.player, list(dealer), self.config.side)

    def text_view(self) -> str:
        """The cards in words."""

        def listed(cards: list[list[str]]) -> str:
            return " , ".join(f"{rank} of {suit}" for rank, suit in cards)

        state = self._state
        hidden = "" if self._is_shown() else " and a card face down"
        return f"dealer : {listed(state['dealer'])}{hidden}\nyou : {listed(state['player'])}"

    def state_text(self, state: State) -> str:
        """The hand's sum, whether it has a usable ace, and the dealer's visible card."""
        if self.config.layout.notation == "structured":
            return claims.record(state)
        return super().state_text(state)

    def _reason(self, actions: list[str]) -> str:
        return actions[0].lower()

    def _state_rule(self) -> str:
        return (
            "Describe a state by the sum of your cards, whether an ace in it counts 11, and the "
            f"dealer's first card, such as: {self.state_text(self.example_state)}"
        )

    def _rules(self) -> str:
        shown = (
            "The picture shows the dealer's cards above and yours below; "
            if self.config.render_mode == "vision"
            else "The dealer's cards and yours are named; "
        )
        return (
            "You play Blackjack against a dealer: come closer to 21 than the dealer without going "
            f"above it.\n{shown}the dealer's second card lies face down until you stand.\n"
            "J, Q and K count 10, an ace counts 11 or, where that would exceed 21, 1 (an ace that "
            "counts 11 is called usable). An ace and a ten in the first two cards beat any other "
            "21. Every card is drawn from a full deck.\n"
            f"Actions: {', '.join(ACTIONS)}. Hit draws a card, and more than 21 loses at once; "
            "after Stand the dealer draws up to 17 or more, and the hands are compared."
        )

    def _brief_rules(self) -> str:
        return "come closer to 21 than the dealer . actions : Hit , Stand"
