"""What the trajectory viewer embeds: plain JSON, with token arrays deflated per trajectory.

Shape legend: T tokens of a row.
"""

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vagen.report.frames import fit_frames
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import TokenRow, Trajectory, Turn

TokenText = Callable[[int], str]

LOGPROB_SCALE = 3.0
"""Nats below 0 at which a token has the strongest colour."""
DROPPED_MANTISSA_BITS = 12
"""Dropped of float32's 23 bits: a relative error of 2^-12 is invisible, and the rest deflates."""

COLOR_COLUMNS = {"advantage": "advantages", "value": "values"}
"""Colourings of the viewer that need a column of the batch."""


def token_text(tokenizer: Any | None) -> TokenText:
    """Text of one token id by `tokenizer.decode`, or the id itself."""
    if tokenizer is None:
        return lambda token_id: f"#{token_id}"
    return lambda token_id: str(tokenizer.decode([token_id], skip_special_tokens=False))


def script_safe_json(value: Any) -> str:
    """ASCII JSON that can stand inside a `<script>` element whatever the strings hold.

    Numbers that are not finite become null: JSON has no spelling for them.
    """
    text = json.dumps(_finite(value), allow_nan=False, sort_keys=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def viewer_payload(
    batch: TrajectoryBatch, *, text_of: TokenText, max_frame_bytes: int
) -> dict[str, Any]:
    """Everything the page's script reads.

    Args:
        batch: Trajectories and their frames.
        text_of: Text of one token id.
        max_frame_bytes: Frames beyond this many bytes in all are re-encoded smaller.

    Returns:
        Plain `{vocab, ids, images, states, scales, trajectories}`; `trajectories[i].blob` is base64
        of the deflated arrays of its rows: words, turn and mask as int32, then `columns` as
        float32, all little-endian, first byte of every number first (such planes deflate better).
    """
    builder = _Builder(batch, text_of=text_of, frames=fit_frames(batch.images, max_frame_bytes))
    trajectories = [builder.trajectory(trajectory) for trajectory in batch.trajectories]
    return {
        "vocab": builder.vocabulary_text,
        "ids": builder.vocabulary_ids,
        "images": builder.images.items,
        "states": builder.states.items,
        "scales": color_scales(batch.trajectories),
        "trajectories": trajectories,
    }


def color_scales(trajectories: Sequence[Trajectory]) -> dict[str, dict[str, float]]:
    """Centre and half-width of each colouring, over the sampled tokens of the whole batch.

    One scale for all trajectories makes colours comparable. The half-width is the 98th percentile
    of the distance from the centre (0, or the mean for values), so that one outlier does not bleach
    the rest. A colouring whose column no row holds is left out.
    """
    rows = [row for trajectory in trajectories for row in trajectory.rows]
    scales = {}
    if rows:
        scales["logprob"] = {"center": 0.0, "scale": LOGPROB_SCALE}
    for color, column in COLOR_COLUMNS.items():
        parts = [row.columns[column][row.loss_mask] for row in rows if column in row.columns]
        values = np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
        values = values[np.isfinite(values)]
        if not parts:
            continue
        center = float(values.mean()) if color == "value" and values.size else 0.0
        width = float(np.percentile(np.abs(values - center), 98)) if values.size else 0.0
        scales[color] = {"center": center, "scale": width or 1.0}
    return scales


@dataclass
class _Table:
    """Distinct items in order of first use."""

    items: list[Any] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)

    def put(self, key: str, item: Any) -> int:
        if key not in self.index:
            self.index[key] = len(self.items)
            self.items.append(item)
        return self.index[key]


class _Builder:
    """Interns frames, states and token texts while it walks the batch."""

    def __init__(
        self, batch: TrajectoryBatch, *, text_of: TokenText, frames: Mapping[str, bytes]
    ) -> None:
        self.images = _Table()
        self.states = _Table()
        self._frames = frames
        ids = [row.input_ids for item in batch.trajectories for row in item.rows]
        self._vocabulary = np.unique(np.concatenate(ids)) if ids else np.zeros(0, np.int32)
        self.vocabulary_ids = [int(token_id) for token_id in self._vocabulary]
        self.vocabulary_text = [text_of(token_id) for token_id in self.vocabulary_ids]

    def trajectory(self, item: Trajectory) -> dict[str, Any]:
        rows, blob = self._rows(item.rows)
        return {
            "id": item.trajectory_id,
            "group": item.group_id,
            "config": item.config_id,
            "env": item.env_name,
            "seed": str(item.seed),
            "level": item.level_hash,
            "terminated": item.terminated,
            "truncated": item.truncated,
            "success": item.success,
            "status": str(item.status),
            "score": float(item.score),
            "error": item.error,
            "bootstrap": item.bootstrap_value,
            "tokens": sum(len(row.input_ids) for row in item.rows),
            "sampled": sum(int(row.loss_mask.sum()) for row in item.rows),
            "turns": [self._turn(turn) for turn in item.turns],
            "last": [self._image(digest) for digest in _last_frames(item)],
            "rows": rows,
            "blob": blob,
        }

    def _turn(self, turn: Turn) -> dict[str, Any]:
        return {
            "text": turn.response_text,
            "obs": turn.observation_text,
            "parsed": turn.parsed.to_dict(),
            "rewards": asdict(turn.rewards),
            "metrics": asdict(turn.metrics),
            "state": self._state(turn.state),
            "next": self._state(turn.next_state),
            "verdict": None if turn.verdict is None else turn.verdict.to_dict(),
            "cut": turn.length_cut,
            "summary": turn.summary,
            "images": [self._image(digest) for digest in turn.images],
        }

    def _state(self, state: dict[str, Any]) -> int:
        return self.states.put(json.dumps(state, sort_keys=True), state)

    def _image(self, digest: str) -> int | None:
        png = self._frames.get(digest)
        if png is None:
            return None
        return self.images.put(digest, base64.b64encode(png).decode("ascii"))

    def _rows(self, rows: Sequence[TokenRow]) -> tuple[list[dict[str, Any]], str]:
        described, arrays = [], []
        for row in rows:
            columns = {
                "rollout_logprobs": row.rollout_logprobs,
                **dict(sorted(row.columns.items())),
            }
            described.append(
                {"index": row.row_index, "length": len(row.input_ids), "columns": list(columns)}
            )
            arrays.append(np.searchsorted(self._vocabulary, row.input_ids).astype("<i4"))
            arrays.append(row.turn_index.astype("<i4"))
            arrays.append(row.loss_mask.astype("<i4"))
            arrays.extend(_shortened(column) for column in columns.values())
        words = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
        planes = np.ascontiguousarray(words.reshape(-1, 4).T)
        packed = zlib.compress(planes.tobytes(), 6)
        return described, base64.b64encode(packed).decode("ascii")


def _last_frames(item: Trajectory) -> list[str]:
    """Digests of frames shown after the last turn: in the last token row, but in no turn."""
    if not item.rows:
        return []
    row = item.rows[-1]
    # The row's first observation is that of the first turn answered in it.
    first = int(row.turn_index[row.turn_index >= 0].min(initial=len(item.turns)))
    # What was dropped before the row began is not in it.
    begins = int(row.turn_index[row.loss_mask].min(initial=len(item.turns)))
    seen = sum(
        len(turn.images)
        for k, turn in enumerate(item.turns[first:], first)
        if k >= begins or turn.parsed.memory != "drop"
    )
    return row.images[seen:]


def _shortened(values_T: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [T] rounded to a shorter mantissa; zeros, infinities and NaN stay as they are."""
    bits = values_T.astype("<f4").view("<u4")
    half, keep = np.uint32(1 << (DROPPED_MANTISSA_BITS - 1)), ~np.uint32(0) << DROPPED_MANTISSA_BITS
    rounded = ((bits + half) & np.uint32(keep)).view("<f4")
    return np.where(np.isfinite(values_T), rounded, values_T).astype("<f4")
