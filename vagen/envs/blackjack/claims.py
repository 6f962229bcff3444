"""Claims about Blackjack: the sum, a usable ace, the dealer's card."""

import json
from typing import Literal

from vagen.envs.base import State
from vagen.envs.claims import Claim, read_claims, read_object

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


CLAIMS = (Hand, Dealer)


def truth(state: State) -> list[Claim]:
    """The hand and the dealer's first card."""
    hand = Hand(sum=state["sum"], ace="a" if state["usable_ace"] else "no")
    return [hand, Dealer(card=state["dealer_shows"].lower())]


def record(state: State) -> str:
    """The claims as JSON: `{"sum": 16, "ace": "none", "dealer_shows": "6"}`."""
    ace = "usable" if state["usable_ace"] else "none"
    return json.dumps({"sum": state["sum"], "ace": ace, "dealer_shows": state["dealer_shows"]})


def read(text: str) -> list[Claim] | None:
    """Parses sentences or `record`."""
    found = read_object(text)
    if found is None:
        return read_claims(text, CLAIMS)
    if set(found) != {"sum", "ace", "dealer_shows"}:
        return None
    ace = _RECORDED.get(str(found["ace"]).lower())
    hand = f"sum is {found['sum']} with {ace} usable ace"
    return read_claims(f"{hand}\ndealer shows {found['dealer_shows']}", CLAIMS)
