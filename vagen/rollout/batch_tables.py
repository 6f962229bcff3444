"""Trajectories as Arrow tables and back, bit for bit.

Per-token arrays are list columns; a turn's rewards and metrics are maps by name; `parsed`,
`verdict` and the states are JSON text; None is null. `check_consistency` says whether trajectories,
turns, rows and images belong together.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vagen.envs.images import image_digest
from vagen.envs.parsing import ParsedResponse
from vagen.rollout.types import (
    CONTEXT,
    Status,
    TokenRow,
    Trajectory,
    Turn,
    TurnMetrics,
    TurnRewards,
    Verdict,
)

_TRAJECTORIES = pa.schema(
    [
        ("trajectory_id", pa.string()),
        ("group_id", pa.string()),
        ("config_id", pa.string()),
        ("env_name", pa.string()),
        ("env_config_digest", pa.string()),
        ("seed", pa.int64()),
        ("level_hash", pa.string()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("success", pa.bool_()),
        ("status", pa.string()),
        ("score", pa.float64()),
        ("error", pa.string()),
        ("bootstrap_value", pa.float64()),
        ("kept", pa.bool_()),
        ("baseline_score", pa.float64()),
    ]
)
_TURNS = pa.schema(
    [
        ("trajectory_id", pa.string()),
        ("turn_index", pa.int32()),
        ("observation_text", pa.string()),
        ("images", pa.list_(pa.string())),
        ("response_text", pa.string()),
        ("length_cut", pa.bool_()),
        ("parsed", pa.string()),
        ("rewards", pa.map_(pa.string(), pa.float64())),
        ("metrics", pa.map_(pa.string(), pa.bool_())),
        ("state", pa.string()),
        ("next_state", pa.string()),
        ("verdict", pa.string()),
    ]
)
_FURTHER = (
    pa.field("policy_version", pa.string()),
    pa.field("summary", pa.bool_()),
    pa.field("thought_length", pa.int32()),
    pa.field("thought_cut", pa.bool_()),
    pa.field("placed", pa.string()),
)
"""Optional columns of turns, for batches of several policies, with summaries, with thoughts or with
rewards inside a response."""
_TOKENS = pa.schema(
    [
        ("trajectory_id", pa.string()),
        ("row_index", pa.int32()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("turn_index", pa.list_(pa.int16())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("images", pa.list_(pa.string())),
    ]
)
"""Additional columns, each list<float32>, come from later steps."""
_IMAGES = pa.schema([("sha256", pa.string()), ("png", pa.large_binary())])

TABLES = {"trajectories": _TRAJECTORIES, "turns": _TURNS, "tokens": _TOKENS, "images": _IMAGES}
"""Schemas by file name."""

_JSON = ("parsed", "state", "next_state", "verdict", "placed")


def encode(trajectories: list[Trajectory], images: Mapping[str, bytes]) -> dict[str, pa.Table]:
    """The four tables of a batch. Images are sorted by digest; everything else keeps its order."""
    digests = sorted(images)
    turns = [turn for t in trajectories for turn in t.turns]
    further = [f for f in _FURTHER if any(getattr(turn, f.name) for turn in turns)]
    return {
        "trajectories": _table(_TRAJECTORIES, trajectories),
        "turns": _table(pa.schema([*_TURNS, *further]), turns),
        "tokens": _token_table([row for t in trajectories for row in t.rows]),
        "images": pa.table(
            [
                pa.array(digests, pa.string()),
                pa.array([images[digest] for digest in digests], pa.large_binary()),
            ],
            schema=_IMAGES,
        ),
    }


def decode(tables: Mapping[str, pa.Table]) -> tuple[list[Trajectory], dict[str, bytes]]:
    """Inverse of `encode`.

    Raises:
        BatchError: A turn or row belongs to no trajectory.
    """
    trajectories = []
    for fields in tables["trajectories"].to_pylist():
        fields["status"] = Status(fields["status"])
        trajectories.append(Trajectory(**fields, turns=[], rows=[]))
    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    for fields in tables["turns"].to_pylist(maps_as_pydicts="strict"):
        for name in _JSON:
            fields[name] = None if fields.get(name) is None else json.loads(fields[name])
        fields["parsed"] = ParsedResponse.from_dict(fields["parsed"])
        fields["rewards"] = TurnRewards(**fields["rewards"])
        fields["metrics"] = TurnMetrics(**fields["metrics"])
        if fields["verdict"] is not None:
            fields["verdict"] = Verdict.from_dict(fields["verdict"])
        _owner(by_id, fields["trajectory_id"], "turn").turns.append(Turn(**fields))
    for row in _token_rows(tables["tokens"]):
        _owner(by_id, row.trajectory_id, "token row").rows.append(row)
    images = tables["images"].to_pydict()
    return trajectories, dict(zip(images["sha256"], images["png"], strict=True))


def parquet_bytes(table: pa.Table) -> pa.Buffer:
    """The table as a Parquet file: equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="none" if "png" in table.schema.names else "zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    return sink.getvalue()


def read_table(path: Path, name: str) -> pa.Table:
    """Reads the Parquet file of the table `name` and checks its columns.

    Raises:
        BatchError: It is not a Parquet file, or its columns differ from the schema.
    """
    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
    except pa.ArrowInvalid as error:
        raise BatchError(f"{path} is not a Parquet file: {error}") from error
    expected = list(TABLES[name])
    found = list(table.schema)
    extra = [
        field in _FURTHER if name == "turns" else field.type == pa.list_(pa.float32())
        for field in found[len(expected) :]
    ]
    fits = len(found) >= len(expected) and all(
        a.name == b.name and a.type == b.type for a, b in zip(expected, found, strict=False)
    )
    if not fits or not all(extra) or (extra and name not in ("turns", "tokens")):
        raise BatchError(
            f"{path} has the columns {_describe(found)}; it must have {_describe(expected)}"
        )
    return table


def _describe(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in fields)


def _owner(by_id: Mapping[str, Trajectory], name: str, what: str) -> Trajectory:
    if name not in by_id:
        raise BatchError(f"a {what} belongs to the trajectory {name!r}, which the batch lacks")
    return by_id[name]


def _table(schema: pa.Schema, items: list[Any]) -> pa.Table:
    columns = []
    for column in schema:
        values = [getattr(item, column.name) for item in items]
        if column.name in _JSON:
            values = [None if value is None else _json(value) for value in values]
        elif column.type == pa.string():
            values = [_utf8(value) for value in values]
        elif pa.types.is_map(column.type):
            values = [list(dataclasses.asdict(value).items()) for value in values]
        try:
            columns.append(pa.array(values, column.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise BatchError(f"{column.name} does not fit {column.type}: {error}") from error
    return pa.table(columns, schema=schema)


def _json(value: Any) -> str:
    if isinstance(value, ParsedResponse | Verdict):
        value = value.to_dict()
    return json.dumps(value, separators=(",", ":"))


def _utf8(text: str | None) -> str | None:
    """Replaces lone surrogates, which a remote policy's JSON may contain but no file may."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def _token_table(rows: list[TokenRow]) -> pa.Table:
    sizes = [row.input_ids.size for row in rows]
    arrays: list[pa.Array] = [
        pa.array([row.trajectory_id for row in rows], pa.string()),
        pa.array([row.row_index for row in rows], pa.int32()),
        _lists([row.input_ids for row in rows], sizes, pa.int32()),
        _lists([row.loss_mask for row in rows], sizes, pa.bool_()),
        _lists([row.turn_index for row in rows], sizes, pa.int16()),
        _lists([row.rollout_logprobs for row in rows], sizes, pa.float32()),
        pa.array([row.images for row in rows], pa.list_(pa.string())),
    ]
    schema = _TOKENS
    for name in sorted({name for row in rows for name in row.columns}):
        if name in _TOKENS.names:
            raise BatchError(f"a step added the column {name!r}, which every token row has already")
        schema = schema.append(pa.field(name, pa.list_(pa.float32())))
        arrays.append(_lists([row.columns.get(name) for row in rows], sizes, pa.float32()))
    return pa.table(arrays, schema=schema)


def _lists(arrays: list[NDArray | None], sizes: list[int], kind: pa.DataType) -> pa.Array:
    """A list column from one array per row, null where a row has none."""
    present = [array for array in arrays if array is not None]
    missing = np.array([array is None for array in arrays], np.bool_)
    lengths = np.where(missing, 0, np.array(sizes, np.int64))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate(present) if present else np.empty(0, kind.to_pandas_dtype())
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, kind), mask=pa.array(missing) if missing.any() else None
    )


def _token_rows(table: pa.Table) -> list[TokenRow]:
    columns = {
        field.name: _arrays(table.column(field.name))
        for field in table.schema
        if pa.types.is_list(field.type) and field.name != "images"
    }
    base = {field.name for field in dataclasses.fields(TokenRow)}
    plain = table.select(["trajectory_id", "row_index", "images"]).to_pylist()
    rows = []
    for index, fields in enumerate(plain):
        arrays = {name: values[index] for name, values in columns.items()}
        added = {n: v for n, v in arrays.items() if n not in base and v is not None}
        own: dict[str, Any] = {n: v for n, v in arrays.items() if n in base}
        rows.append(TokenRow(**fields, **own, columns=added))
    return rows


def _arrays(column: pa.ChunkedArray) -> list[NDArray | None]:
    """One writable array per row of a list column, None where it is null."""
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], column.type)
    values = lists.values.to_numpy(zero_copy_only=False).copy()
    offsets = lists.offsets.to_numpy()
    valid = lists.is_valid().to_numpy(zero_copy_only=False)
    return [
        values[start:end] if there else None
        for (start, end), there in zip(pairwise(offsets), valid, strict=True)
    ]


class BatchError(ValueError):
    """An inconsistent trajectory batch; the message says where, and what is expected."""


def check_consistency(trajectories: list[Trajectory], images: Mapping[str, bytes]) -> None:
    """Checks identities, order, array shapes and image references.

    The match between image blocks in `input_ids` and the row's images depends on the model; it is
    checked where rows are built.

    Raises:
        BatchError: Names the first trajectory, turn, row or image that is wrong.
    """
    seen: set[str] = set()
    for trajectory in trajectories:
        name = trajectory.trajectory_id
        if name in seen:
            raise BatchError(f"two trajectories are called {name!r}: ids must be unique")
        seen.add(name)
        _check_turns(trajectory, images)
        for index, row in enumerate(trajectory.rows):
            if row.trajectory_id != name or row.row_index != index:
                raise BatchError(
                    f"row {index} of trajectory {name!r} says it is row {row.row_index} of "
                    f"{row.trajectory_id!r}"
                )
            _check_row(row, trajectory, images)
        _check_order(trajectory)
    for digest, png in images.items():
        if (found := image_digest(png)) != digest:
            raise BatchError(f"the image stored under SHA-256 {digest} has {found}")


def _check_turns(trajectory: Trajectory, images: Mapping[str, bytes]) -> None:
    name = trajectory.trajectory_id
    for index, turn in enumerate(trajectory.turns):
        if turn.trajectory_id != name or turn.turn_index != index:
            raise BatchError(
                f"turn {index} of trajectory {name!r} says it is turn {turn.turn_index} of "
                f"{turn.trajectory_id!r}"
            )
        _check_images(turn.images, images, f"turn {index} of trajectory {name!r}")


def _check_row(row: TokenRow, trajectory: Trajectory, images: Mapping[str, bytes]) -> None:
    where = f"row {row.row_index} of trajectory {row.trajectory_id!r}"
    arrays = {
        "input_ids": (row.input_ids, np.int32),
        "loss_mask": (row.loss_mask, np.bool_),
        "turn_index": (row.turn_index, np.int16),
        "rollout_logprobs": (row.rollout_logprobs, np.float32),
        **{name: (values, np.float32) for name, values in row.columns.items()},
    }
    for name, (values, dtype) in arrays.items():
        if values.dtype != dtype or values.shape != row.input_ids.shape or values.ndim != 1:
            raise BatchError(
                f"{name} of {where} is {values.dtype} {list(values.shape)}; it must be "
                f"{np.dtype(dtype)} [{row.input_ids.size}] like input_ids"
            )
    _check_images(row.images, images, where)
    if not row.input_ids.size:
        return
    turns = len(trajectory.turns)
    # The last observation may follow, and a failed environment leaves a response without a turn.
    sampled = row.turn_index[row.loss_mask]
    last_sampled = int(sampled.max(initial=CONTEXT))
    allowed = turns if trajectory.status is Status.ENV_ERROR else turns - 1
    if row.turn_index.min() < CONTEXT or row.turn_index.max() > turns or last_sampled > allowed:
        raise BatchError(
            f"turn_index of {where} runs from {row.turn_index.min()} to {row.turn_index.max()} "
            f"(sampled tokens to {last_sampled}); the trajectory has {turns} turns"
        )
    if sampled.size and sampled.min() <= CONTEXT:
        raise BatchError(f"{where} has sampled tokens before its first turn")


def _check_order(trajectory: Trajectory) -> None:
    """Checks that each turn is sampled in one row, and turns are in the order of rows."""
    latest, place = CONTEXT, -1
    for row in trajectory.rows:
        sampled = row.turn_index[row.loss_mask]
        if not sampled.size:
            continue
        if sampled.min() <= latest:
            raise BatchError(
                f"turn {sampled.min()} of trajectory {row.trajectory_id!r} is sampled in row "
                f"{row.row_index}, and turn {latest} in row {place}; each turn is sampled in one "
                "row, in order"
            )
        latest, place = int(sampled.max()), row.row_index


def _check_images(digests: list[str], images: Mapping[str, bytes], where: str) -> None:
    for digest in digests:
        if digest not in images:
            raise BatchError(f"{where} shows the image {digest}, which the batch does not hold")
