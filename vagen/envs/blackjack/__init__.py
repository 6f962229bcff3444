"""Blackjack: draw cards up to 21, then the dealer draws."""
