"""Frames as PNG: any decoder reads ours, ours reads any, and nothing else."""

import io

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from vagen.envs import make
from vagen.envs.images import decode_png, image_digest, png_bytes

RNG = np.random.default_rng(0)
ROWS, COLUMNS = np.mgrid[:60, :77]
SMOOTH = np.stack([ROWS * 4, COLUMNS * 3, (ROWS + COLUMNS) % 256], -1).astype(np.uint8)
FRAMES = {
    "game": make("FrozenLake").reset(seed=0)[0]["images"][0],
    "smooth": SMOOTH,
    "noise": RNG.integers(0, 256, (31, 17, 3), dtype=np.uint8),
    "pixel": np.array([[[1, 2, 3]]], np.uint8),
    "column": RNG.integers(0, 256, (9, 1, 3), dtype=np.uint8),
    "strided": SMOOTH[::2, ::-3],
}


def by_pillow(frame: np.ndarray, **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame)).save(out, format="PNG", **options)
    return out.getvalue()


@pytest.mark.parametrize("name", FRAMES)
def test_pillow_reads_ours_and_we_read_pillows(name) -> None:
    frame = FRAMES[name]
    with Image.open(io.BytesIO(png_bytes(frame))) as image:
        image.verify()
    with Image.open(io.BytesIO(png_bytes(frame))) as image:
        assert image.mode == "RGB" and (np.asarray(image) == frame).all()
    for png in (png_bytes(frame), by_pillow(frame), by_pillow(frame, compress_level=9)):
        decoded = decode_png(png)
        assert decoded.dtype == np.uint8 and (decoded == frame).all()
        decoded[:] = 0  # it is the caller's


def test_flat_pictures_are_small_and_a_frame_has_one_digest() -> None:
    flat = png_bytes(FRAMES["game"])
    assert len(flat) < len(by_pillow(FRAMES["game"], compress_level=1))
    assert image_digest(flat) == image_digest(png_bytes(FRAMES["game"].copy()))
    assert len(png_bytes(SMOOTH)) < SMOOTH.nbytes / 4


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1"])
def test_other_kinds_of_png_become_colours(mode) -> None:
    out = io.BytesIO()
    Image.fromarray(SMOOTH).convert(mode).save(out, format="PNG")
    assert decode_png(out.getvalue()).shape == SMOOTH.shape


@pytest.mark.parametrize("broken", ["cut", "flipped", "empty", "jpeg"])
def test_what_is_no_whole_png_is_refused(broken) -> None:
    png = bytearray(png_bytes(SMOOTH))
    if broken == "cut":
        png = png[: len(png) // 2]
    elif broken == "flipped":
        png[60] ^= 0xFF
    elif broken == "empty":
        png = bytearray()
    else:
        out = io.BytesIO()
        Image.fromarray(SMOOTH).save(out, format="JPEG")
        png = bytearray(out.getvalue())
    with pytest.raises((OSError, SyntaxError, UnidentifiedImageError)):
        decode_png(bytes(png))


@pytest.mark.parametrize("frame", [np.zeros((2, 2)), np.zeros((2, 2, 4), np.uint8), np.zeros(0)])
def test_what_is_no_frame_is_refused(frame) -> None:
    with pytest.raises(ValueError, match="uint8 \\[height, width, 3\\]"):
        png_bytes(frame)
