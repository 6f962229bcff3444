"""Measures the quality of a judge on generated statements with known truth."""

from vagen.judge.calibration.claims import ClaimWriter, writer_of
from vagen.judge.calibration.writer import Scene, Text, TextKind

__all__ = ["ClaimWriter", "Scene", "Text", "TextKind", "writer_of"]
