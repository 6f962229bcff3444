"""Draws cards and the table."""

import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vagen.envs.blackjack.game import Card

SCALE = 4
"""Oversampling factor of cards, for smooth edges."""
CLOTH, PAPER, EDGE = (24, 104, 62), (252, 252, 248), (60, 60, 60)
BACK, LACE = (46, 66, 150), (176, 190, 236)
RED, BLACK = (204, 20, 30), (16, 16, 20)


def table(player: list[Card], dealer: list[Card | None], side: int) -> NDArray[np.uint8]:
    """Draws the dealer's cards above the player's; None is a card face down.

    Returns:
        uint8 [side, side, 3], a new array.
    """
    picture = np.empty((side, side, 3), np.uint8)
    picture[:] = CLOTH
    margin = side // 30
    for cards, is_above in ((dealer, True), (player, False)):
        # Cards never overlap: more cards are smaller.
        width = min(side * 30 // 100, (side - margin) // len(cards) - margin)
        height = width * 44 // 30
        top = margin if is_above else side - margin - height
        for place, card in enumerate(cards):
            left = margin + place * (width + margin)
            picture[top : top + height, left : left + width] = _card(card, width, height)
    return picture


@functools.cache
def _card(card: Card | None, final_width: int, final_height: int) -> NDArray[np.uint8]:
    """Draws a card, uint8 [final_height, final_width, 3]; None is face down."""
    height, width = final_height * SCALE, final_width * SCALE
    image = Image.new("RGB", (width, height), CLOTH)
    draw = ImageDraw.Draw(image)
    paper = PAPER if card is not None else BACK
    draw.rounded_rectangle(
        (0, 0, width - 1, height - 1), width // 10, fill=paper, outline=EDGE, width=SCALE
    )
    if card is None:
        for place in range(1, 8):
            x, y = width * place // 8, height * place // 8
            draw.line((x, height // 12, x, height * 11 // 12), fill=LACE, width=SCALE)
            draw.line((width // 12, y, width * 11 // 12, y), fill=LACE, width=SCALE)
    else:
        rank, suit = card
        colour = RED if suit in ("hearts", "diamonds") else BLACK
        font = ImageFont.load_default(height * 0.42)
        box = draw.textbbox((0, 0), rank, font=font)
        draw.text((width * 0.08 - box[0], height * 0.07 - box[1]), rank, fill=colour, font=font)
        _suit(draw, suit, width * 0.62, height * 0.72, height * 0.2, colour)
    return np.asarray(image.resize((final_width, final_height), Image.Resampling.BOX))


def _suit(
    draw: ImageDraw.ImageDraw,
    suit: str,
    x: float,
    y: float,
    size: float,
    colour: tuple[int, int, int],
) -> None:
    """Draws a suit centred at (x, y), `size` from its centre to its edge."""

    def disc(right: float, down: float, radius: float) -> None:
        cx, cy, r = x + right * size, y + down * size, radius * size
        draw.ellipse((cx - r, cy - r, cx + r, cy + r), fill=colour)

    def polygon(*corners: tuple[float, float]) -> None:
        draw.polygon([(x + right * size, y + down * size) for right, down in corners], fill=colour)

    if suit == "diamonds":
        polygon((0, -1), (0.75, 0), (0, 1), (-0.75, 0))
    elif suit == "hearts":
        disc(-0.44, -0.4, 0.5)
        disc(0.44, -0.4, 0.5)
        polygon((-0.9, -0.2), (0.9, -0.2), (0, 1))
    elif suit == "spades":
        disc(-0.44, 0.2, 0.48)
        disc(0.44, 0.2, 0.48)
        polygon((-0.9, 0.05), (0.9, 0.05), (0, -1))
        polygon((-0.35, 1), (0.35, 1), (0, 0.1))
    else:
        disc(0, -0.5, 0.44)
        disc(-0.48, 0.2, 0.44)
        disc(0.48, 0.2, 0.44)
        polygon((-0.35, 1), (0.35, 1), (0, -0.3))
