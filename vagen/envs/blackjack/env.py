"""Blackjack as an environment, its options and its claims."""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from vagen.envs.base import Observation, State
from vagen.envs.blackjack.cards import table
from vagen.envs.blackjack.game import (
    ACTIONS,
    Blackjack,
    BlackjackLevel,
    HandValue,
    best_action,
    sample_level,
    value_of,
)
from vagen.envs.claims import Claim
from vagen.envs.config import EnvConfig
from vagen.envs.levels import Split
from vagen.envs.parsing import PromptFormat
from vagen.envs.turns import TurnEnv

LIKELY_CARD = 10
"""The most probable value of the next card (4 of 13)."""
Ace = Literal["a", "no"]
_RECORDED: dict[str, Ace] = {"usable": "a", "none": "no"}
SUM, ACE, DEALER = 0.5, 0.1, 0.4
"""Weight of each fact: most hands have no usable ace, so that claim says little."""


class Hand(Claim):
    """The player's cards."""

    phrase = "sum is {sum} with {ace} usable ace"
    weight = SUM + ACE
    sum: int
    ace: Ace

    def agreement(self, true: Claim) -> float:
        """Agreement of the sum and, with less weight, of the ace."""
        assert isinstance(true, Hand)
        right = SUM * (self.sum == true.sum) + ACE * (self.ace == true.ace)
        return right / self.weight


class Dealer(Claim):
    """The dealer's first card."""

    phrase = "dealer shows {card}"
    weight = DEALER
    card: Literal["a", "2", "3", "4", "5", "6", "7", "8", "9", "10", "j", "q", "k"]

    def __str__(self) -> str:
        return self.phrase.format(card=self.card.upper())


class BlackjackConfig(EnvConfig):
    """Options of Blackjack."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {
            **{"format": 0.5, "win": 1.0, "natural": 1.0, "draw": 0.0, "loss": -1.0},
            "invalid": -0.1,
        },
        "vagen-new": {
            **{"format": 0.1, "win": 1.0, "natural": 1.5, "draw": 0.0, "loss": -1.0},
            "invalid": 0.0,
        },
    }

    prompt_format: PromptFormat = "grounding_worldmodeling"
    """Reasoning strategy, with suffix `_structured` for structured state texts."""
    max_actions_per_step: PositiveInt = 1
    """Maximum actions in one response."""
    side: int = Field(300, ge=96, le=512)
    """Side of the image in pixels."""


class BlackjackEnv(TurnEnv):
    """Draw cards up to 21; then the dealer draws.

    The expert plays optimally, which loses slightly on average. It predicts random draws as the
    most probable card.
    """

    env_name: ClassVar[str] = "Blackjack"
    config_class: ClassVar[type[BlackjackConfig]] = BlackjackConfig
    claims: ClassVar[tuple[type[Claim], ...]] = (Hand, Dealer)
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
        hand = Hand(sum=state["sum"], ace="a" if state["usable_ace"] else "no")
        return [hand, Dealer(card=state["dealer_shows"].lower())]

    @classmethod
    def record(cls, state: State, config: BlackjackConfig) -> dict[str, Any]:
        """The claims, as `{"sum": 16, "ace": "none", "dealer_shows": "6"}`."""
        ace = "usable" if state["usable_ace"] else "none"
        return {"sum": state["sum"], "ace": ace, "dealer_shows": state["dealer_shows"]}

    @classmethod
    def clauses(cls, record: dict[str, Any]) -> str:
        """The sentences of `record`; its JSON if a key is missing or unknown."""
        if set(record) != {"sum", "ace", "dealer_shows"}:
            return super().clauses(record)
        ace = _RECORDED.get(str(record["ace"]).lower())
        hand = f"sum is {record['sum']} with {ace} usable ace"
        return f"{hand}\ndealer shows {record['dealer_shows']}"

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
        hand = HandValue.of(game.player)
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
        return [best_action(HandValue.of(game.player), value_of(game.dealer[0][0]))]

    def _after(self, state: State, actions: list[str]) -> State:
        # Assumes that a hit draws the most probable card; the dealer's first card stays.
        hand = HandValue(state["sum"], state["usable_ace"])
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
