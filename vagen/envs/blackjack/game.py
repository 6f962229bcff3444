"""The game of Blackjack: cards, the dealer, and the value of optimal play.

Rules are those of Sutton and Barto (2018, example 5.1) and of Gymnasium's Blackjack: cards are
drawn with replacement, an ace counts 11 if that does not bust, the dealer sticks on 17 or more, and
a natural (an ace and a ten in two cards) beats any other 21.
"""

import functools
from dataclasses import dataclass
from random import Random
from typing import Literal

from vagen.envs.levels import MAX_CANDIDATES, LevelError, Split, content_hash, draw_index, split_of

ACTIONS = ("Hit", "Stand")
RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
SUITS = ("spades", "hearts", "diamonds", "clubs")
DECK_LENGTH = 40
"""Cards per level; no hand needs more (21 aces, and 17 of the dealer's)."""

Card = tuple[str, str]
"""Rank and suit."""
Outcome = Literal["win", "natural", "draw", "loss"]


@dataclass(frozen=True, slots=True)
class BlackjackLevel:
    """The order of the cards."""

    deck: tuple[Card, ...]
    """The player's first two, the dealer's first two (the first is visible), the others."""
    level_hash: str


def sample_level(seed: int, split: Split) -> BlackjackLevel:
    """The deck of a seed in a split.

    Raises:
        LevelError: None of many candidates is in the split.
    """
    rng = Random(seed)
    for _ in range(MAX_CANDIDATES):
        indices = [draw_index(rng, 52) for _ in range(DECK_LENGTH)]
        deck = tuple((RANKS[index % 13], SUITS[index // 13]) for index in indices)
        digest = content_hash("Blackjack " + " ".join(f"{rank}{suit[0]}" for rank, suit in deck))
        if split_of(digest) == split:
            return BlackjackLevel(deck, digest)
    raise LevelError(f"Blackjack: none of {MAX_CANDIDATES} decks is in split {split!r}")


def value_of(rank: str) -> int:
    """Value of a card, with an ace as 1."""
    return RANKS.index(rank) + 1 if rank not in ("J", "Q", "K") else 10


@dataclass(frozen=True, slots=True)
class HandValue:
    """Value of a hand."""

    total: int
    """Total, with a usable ace as 11."""
    usable_ace: bool
    """Whether an ace counts as 11."""

    @classmethod
    def of(cls, cards: list[Card]) -> "HandValue":
        """The hand of some cards."""
        return cls.counting(
            sum(value_of(rank) for rank, _ in cards), any(r == "A" for r, _ in cards)
        )

    @classmethod
    def counting(cls, low: int, has_ace: bool) -> "HandValue":
        """The hand whose cards sum to `low` with aces as 1."""
        usable = has_ace and low <= 11
        return cls(low + 10 * usable, usable)

    def after(self, value: int) -> "HandValue":
        """The hand after another card, with an ace as 1.

        An ace that counts as 1 never counts as 11 again, since sums only grow.
        """
        low = self.total - 10 * self.usable_ace + value
        return HandValue.counting(low, self.usable_ace or value == 1)


class Blackjack:
    """A hand on a level."""

    def __init__(self, level: BlackjackLevel) -> None:
        """Deals the cards."""
        deck = list(level.deck)
        self.player, self.dealer, self._deck = deck[:2], deck[2:4], deck[4:]
        self.outcome: Outcome | None = None

    def hit(self) -> None:
        """Draws a card for the player, who loses above 21."""
        self.player.append(self._deck.pop(0))
        if HandValue.of(self.player).total > 21:
            self.outcome = "loss"

    def stand(self) -> None:
        """Draws the dealer's cards and compares the hands."""
        while HandValue.of(self.dealer).total < 17:
            self.dealer.append(self._deck.pop(0))
        self.outcome = outcome_of(self.player, self.dealer)


def is_natural(cards: list[Card]) -> bool:
    """Whether the cards are an ace and a ten."""
    return len(cards) == 2 and HandValue.of(cards).total == 21


def outcome_of(player: list[Card], dealer: list[Card]) -> Outcome:
    """Outcome of two finished hands; the player's is at most 21."""
    naturals = is_natural(player), is_natural(dealer)
    if any(naturals):
        return "draw" if all(naturals) else "natural" if naturals[0] else "loss"
    player_total, dealer_total = HandValue.of(player).total, HandValue.of(dealer).total
    if dealer_total > 21 or player_total > dealer_total:
        return "win"
    return "draw" if player_total == dealer_total else "loss"


# Optimal play, by dynamic programming over the player's total, a usable ace and the visible card.

DRAWS = [(value, (4 if value == 10 else 1) / 13) for value in range(1, 11)]
"""Card values and their probabilities."""


@functools.cache
def dealer_totals(shown: int) -> dict[int, float]:
    """Probabilities of the dealer's final total (22 stands for a bust, 0 for a natural)."""
    totals: dict[int, float] = {}
    for value, chance in DRAWS:
        if {shown, value} == {1, 10}:
            totals[0] = totals.get(0, 0.0) + chance
            continue
        hand = HandValue.counting(shown, shown == 1).after(value)
        for total, further in _dealer_from(hand).items():
            totals[total] = totals.get(total, 0.0) + chance * further
    return totals


@functools.cache
def _dealer_from(hand: HandValue) -> dict[int, float]:
    if hand.total >= 17:
        return {min(hand.total, 22): 1.0}
    totals: dict[int, float] = {}
    for value, chance in DRAWS:
        for total, further in _dealer_from(hand.after(value)).items():
            totals[total] = totals.get(total, 0.0) + chance * further
    return totals


def stand_value(hand: HandValue, shown: int) -> float:
    """Expected return of standing, without a natural."""
    value = 0.0
    for total, chance in dealer_totals(shown).items():
        if total == 0 or (total <= 21 and total > hand.total):
            value -= chance
        elif total == 22 or total < hand.total:
            value += chance
    return value


@functools.cache
def hit_value(hand: HandValue, shown: int) -> float:
    """Expected return of a hit followed by optimal play."""
    value = 0.0
    for card, chance in DRAWS:
        after = hand.after(card)
        if after.total > 21:
            value -= chance
        else:
            value += chance * max(stand_value(after, shown), hit_value(after, shown))
    return value


def best_action(hand: HandValue, shown: int) -> str:
    """The action with the higher expected return for the visible card (an ace is 1)."""
    return "Hit" if hit_value(hand, shown) > stand_value(hand, shown) else "Stand"
