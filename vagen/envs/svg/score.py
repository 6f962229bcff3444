"""Similarity of two images: structure, colour, and edges with a tolerance.

Each part is 1 for a copy and 0 for an empty sheet: otherwise an empty sheet would score high for
mostly white targets.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""uint8 [side, side, 3]."""

BLUR = 4.0 / 256
"""Standard deviation of the blur for structure and colour, relative to the side."""
THINNED = 64
"""Side of the downsampled images."""
EDGE_TOLERANCE = 6.0 / 256
"""Distance, relative to the side, at which a misplaced edge counts exp(-1)."""
EDGE_STEP = 24.0
"""Minimum change of a channel between neighbours that counts as an edge, of 255."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target image with precomputed values."""

    picture: Picture
    blurred: NDArray[np.float32]
    """[side, side, 3], downsampled."""
    edges: NDArray[np.bool_]
    edge_distance: NDArray[np.float64]
    """Distance to the nearest edge in pixels, [side, side]."""
    ink: float
    """Sum of the blurred differences from white."""
    empty_structure: float
    """Structural similarity of an empty sheet."""

    @classmethod
    def of(cls, picture: Picture) -> "Target":
        """Precomputes a target, uint8 [side, side, 3]."""
        blurred = _blurred(picture)
        white = np.full_like(blurred, 255.0)
        edges = _edges(picture)
        return cls(
            picture,
            blurred,
            edges,
            _distance(edges),
            float(np.abs(blurred - white).sum()),
            _structure(blurred, white),
        )


def compare(target: Target, picture: Picture) -> dict[str, float]:
    """Scores of an image: `structure`, `colour` and `edges`, each in [0, 1].

    - structure: structural similarity (Wang et al. 2004) of the blurred images, rescaled so that an
      empty sheet has 0;
    - colour: shared part of the two images' differences from white, after the blur;
    - edges: harmonic mean of precision and recall of edge pixels, each counting exp(-(d/tau)^2)
      for its distance d from the nearest edge of the other image.
    """
    if np.array_equal(target.picture, picture):
        return {"structure": 1.0, "colour": 1.0, "edges": 1.0}
    blurred = _blurred(picture)
    gain = 1.0 - target.empty_structure
    structure = _structure(target.blurred, blurred) - target.empty_structure
    difference = float(np.abs(target.blurred - blurred).sum())
    ink = target.ink + float(np.abs(255.0 - blurred).sum())
    return {
        "structure": _unit(structure / gain if gain > 1e-6 else 0.0),
        "colour": _unit(1.0 - difference / ink if ink else 1.0),
        "edges": _edge_match(target, picture),
    }


def _blurred(picture: Picture) -> NDArray[np.float32]:
    """Blurs and downsamples an image to about 64 x 64: first by block means."""
    from scipy.ndimage import gaussian_filter

    side = picture.shape[0]
    block = max(side // THINNED, 1)
    cells = side // block
    # Slices are summed: NumPy reductions over few numbers are ten times as slow.
    rows = picture[: cells * block, : cells * block].reshape(cells, block, cells * block * 3)
    parts = rows.sum(1, dtype=np.float32).reshape(cells, cells, block, 3)
    means = sum(parts[:, :, i] for i in range(block)) / np.float32(block**2)
    sigma = BLUR * side / block
    return np.asarray(gaussian_filter(means, (sigma, sigma, 0), truncate=3.0), np.float32)


def _structure(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    from skimage.metrics import structural_similarity

    window = min(7, one.shape[0] - 1 + one.shape[0] % 2)
    return float(
        structural_similarity(one, other, data_range=255.0, channel_axis=2, win_size=window)
    )


def _edges(picture: Picture) -> NDArray[np.bool_]:
    signed = picture.astype(np.int16)
    edges = np.zeros(picture.shape[:2], bool)
    steps = (edges[1:], signed[1:] - signed[:-1]), (edges[:, 1:], signed[:, 1:] - signed[:, :-1])
    for place, step in steps:
        red, green, blue = np.moveaxis(np.abs(step) >= EDGE_STEP, 2, 0)
        place |= red | green | blue
    return edges


def _distance(edges: NDArray[np.bool_]) -> NDArray[np.float64]:
    if not edges.any():
        return np.full(edges.shape, np.inf)
    from scipy.ndimage import distance_transform_edt

    return np.asarray(distance_transform_edt(~edges))


def _edge_match(target: Target, picture: Picture) -> float:
    edges = _edges(picture)
    if not edges.any() or not target.edges.any():
        return float(edges.any() == target.edges.any())
    tolerance = EDGE_TOLERANCE * picture.shape[0]
    precision = np.exp(-((target.edge_distance[edges] / tolerance) ** 2)).mean()
    recall = np.exp(-((_distance(edges)[target.edges] / tolerance) ** 2)).mean()
    both = precision + recall
    return float(2 * precision * recall / both) if both > 0 else 0.0


def _unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)
