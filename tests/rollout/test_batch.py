"""Trajectory batches: exact round trips, sharing of files, and refusal of what does not fit."""

import json
import struct
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vagen.envs.images import image_digest, png_bytes
from vagen.envs.parsing import ParsedResponse
from vagen.rollout.batch import SCHEMA_VERSION, BatchError, TrajectoryBatch
from vagen.rollout.types import (
    CONTEXT,
    SectionScores,
    Status,
    TokenRow,
    Trajectory,
    Turn,
    TurnMetrics,
    TurnRewards,
    Verdict,
)
from vagen.storage import CorruptArtifact, StorageError, commit_directory, verify_directory

ADDED = ("advantages", "old_logprobs", "values")
finite = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
json_objects = st.dictionaries(st.text(max_size=6), json_values, max_size=3)
texts = st.none() | st.text(max_size=6)
words = st.lists(st.text(max_size=4), max_size=3).map(tuple)
scores = st.none() | finite
by_section = st.none() | st.builds(SectionScores, scores, scores)
verdicts = st.builds(Verdict, scores, scores, words, words, words, by_section, by_section)


def float32(draw, size):
    """Any bit patterns, NaN payloads and signed zeros included."""
    bits = draw(st.lists(st.integers(0, 2**32 - 1), min_size=size, max_size=size))
    return np.array(bits, np.uint32).view(np.float32)


@st.composite
def turns(draw, trajectory_id, index, digests):
    return Turn(
        trajectory_id=trajectory_id,
        turn_index=index,
        response_text=draw(st.text(max_size=12)),
        parsed=draw(st.builds(ParsedResponse, st.booleans(), words, *[texts] * 4)),
        rewards=draw(st.builds(TurnRewards, finite, finite, *[scores] * 2)),
        metrics=draw(st.builds(TurnMetrics, st.booleans(), st.booleans())),
        state=draw(json_objects),
        next_state=draw(json_objects),
        verdict=draw(st.none() | verdicts),
        length_cut=draw(st.booleans()),
        observation_text=draw(st.text(max_size=8)),
        images=draw(st.lists(st.sampled_from(digests), max_size=2)) if digests else [],
    )


@st.composite
def rows(draw, trajectory_id, index, turn_count, digests):
    size = draw(st.integers(0, 6))
    turn_index = draw(st.lists(st.integers(CONTEXT, turn_count - 1), min_size=size, max_size=size))
    # A turn is sampled in one row: the first row samples turn 0, the second one the others.
    mask = [draw(st.booleans()) and turn >= 0 and (turn > 0) == (index > 0) for turn in turn_index]
    ids = draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=size, max_size=size))
    return TokenRow(
        trajectory_id=trajectory_id,
        row_index=index,
        input_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask, np.bool_),
        turn_index=np.array(turn_index, np.int16),
        rollout_logprobs=float32(draw, size),
        images=draw(st.lists(st.sampled_from(digests), max_size=3)) if digests else [],
        columns={name: float32(draw, size) for name in draw(st.sets(st.sampled_from(ADDED)))},
    )


@st.composite
def batches(draw):
    pngs = draw(st.lists(st.binary(max_size=8), max_size=4, unique=True))
    images = {image_digest(png): png for png in pngs}
    names = draw(st.lists(st.text(max_size=5), max_size=3, unique=True))
    trajectories = []
    for name in names:
        turn_count = draw(st.integers(0, 3))
        trajectories.append(
            Trajectory(
                trajectory_id=name,
                group_id=draw(st.text(max_size=4)),
                config_id=draw(st.text(max_size=4)),
                env_name="Any",
                env_config_digest="0",
                seed=draw(st.integers(0, 2**63 - 1)),
                level_hash=draw(st.text(max_size=4)),
                terminated=draw(st.booleans()),
                truncated=draw(st.booleans()),
                success=draw(st.booleans()),
                status=draw(st.sampled_from(Status)),
                score=draw(finite),
                turns=[draw(turns(name, i, list(images))) for i in range(turn_count)],
                rows=[
                    draw(rows(name, i, turn_count, list(images)))
                    for i in range(draw(st.integers(0, 2)))
                ],
                error=draw(st.none() | st.text(max_size=8)),
                bootstrap_value=draw(st.none() | finite),
                kept=draw(st.none() | st.booleans()),
                baseline_score=draw(st.none() | finite),
            )
        )
    return TrajectoryBatch(
        trajectories=trajectories,
        images=images,
        policy_version=draw(st.text(max_size=5)),
        config_digest="c",
        kind=draw(st.sampled_from(["rollout", "judge", "advantage", "evaluation"])),
        iteration=draw(st.integers(0, 9999)),
        metrics=draw(st.dictionaries(st.text(max_size=5), finite, max_size=2)),
    )


def plain(value):
    """A form in which equality is equality of every bit."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return value


@given(batches())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_round_trip_is_exact(tmp_path_factory, batch):
    directory = batch.save(tmp_path_factory.mktemp("batch") / "b")
    loaded = TrajectoryBatch.load(directory)
    assert plain(loaded) == plain(batch)
    assert [t.trajectory_id for t in loaded.trajectories] == [
        t.trajectory_id for t in batch.trajectories
    ]


def example(count=3) -> TrajectoryBatch:
    """A small batch like the ones of a run."""
    pngs = [png_bytes(np.full((8, 8, 3), i, np.uint8)) for i in range(count)]
    images = {image_digest(png): png for png in pngs}
    trajectories = []
    for number, digest in enumerate(images):
        name = f"t{number}"
        turn = Turn(
            trajectory_id=name,
            turn_index=0,
            response_text="<think></think><answer>Up</answer>",
            parsed=ParsedResponse(format_correct=True, actions=("Up",)),
            rewards=TurnRewards(env=1.0, format=0.5),
            metrics=TurnMetrics(action_is_valid=True, action_is_effective=True),
            state={"player": [0, 1]},
            next_state={"player": [0, 0]},
            images=[digest],
        )
        row = TokenRow(
            trajectory_id=name,
            row_index=0,
            input_ids=np.arange(5, dtype=np.int32),
            loss_mask=np.array([0, 0, 0, 1, 1], np.bool_),
            turn_index=np.array([-1, -1, 0, 0, 0], np.int16),
            rollout_logprobs=np.array([0, 0, 0, -0.5, -0.25], np.float32),
            images=[digest],
        )
        trajectories.append(
            Trajectory(
                trajectory_id=name,
                group_id="g",
                config_id="frozenlake",
                env_name="FrozenLake",
                env_config_digest="e",
                seed=number,
                level_hash="h",
                terminated=True,
                truncated=False,
                success=False,
                status=Status.OK,
                score=1.5,
                turns=[turn],
                rows=[row],
            )
        )
    return TrajectoryBatch(
        trajectories=trajectories,
        images=images,
        policy_version="p",
        config_digest="c",
        kind="rollout",
        iteration=0,
    )


def test_loaded_arrays_can_be_written_to(tmp_path):
    row = TrajectoryBatch.load(example().save(tmp_path / "b")).trajectories[0].rows[0]
    row.rollout_logprobs[0] = 1.0
    row.loss_mask[0] = True


def test_unchanged_files_are_shared_with_the_previous_batch(tmp_path):
    first = example().save(tmp_path / "rollout")
    batch = TrajectoryBatch.load(first)
    batch.kind = "judge"
    batch.trajectories[0].turns[0].verdict = Verdict(observation=1.0)
    second = batch.save(tmp_path / "judge", previous=first)
    same = {
        name: (first / name).samefile(second / name)
        for name in ("trajectories.parquet", "turns.parquet", "tokens.parquet", "images.parquet")
    }
    assert same == {
        "trajectories.parquet": True,
        "turns.parquet": False,
        "tokens.parquet": True,
        "images.parquet": True,
    }
    assert plain(TrajectoryBatch.load(second)) == plain(batch)


def test_saving_the_same_batch_twice_gives_the_same_digest(tmp_path):
    a = verify_directory(example().save(tmp_path / "a"))
    b = verify_directory(example().save(tmp_path / "b"))
    assert a.digest == b.digest
    assert a.payload["counts"] == {
        "trajectories": 3,
        "turns": 3,
        "rows": 3,
        "tokens": 15,
        "images": 3,
    }


def test_a_step_may_commit_the_files_itself(tmp_path):
    batch = example()
    with commit_directory(
        tmp_path / "b",
        kind=batch.kind,
        schema_version=SCHEMA_VERSION,
        payload=batch.manifest_payload(),
    ) as partial:
        batch.write(partial)
        (partial / "episodes.txt").write_text("more of this step")
    assert plain(TrajectoryBatch.load(tmp_path / "b")) == plain(batch)


@pytest.mark.parametrize("table", ["trajectories", "turns", "tokens", "images"])
def test_a_flipped_byte_is_refused(tmp_path, table):
    directory = example().save(tmp_path / "b")
    path = directory / f"{table}.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptArtifact, match=f"{table}.parquet is corrupt"):
        TrajectoryBatch.load(directory)


def test_another_step_or_configuration_is_refused(tmp_path):
    directory = example().save(tmp_path / "b")
    with pytest.raises(BatchError, match=r"comes from the step 'rollout'.*from 'judge'"):
        TrajectoryBatch.load(directory, kind="judge")
    with pytest.raises(BatchError, match="digest c, this run has d"):
        TrajectoryBatch.load(directory, config_digest="d")


def test_another_schema_version_or_kind_is_refused(tmp_path):
    batch = example()
    for name, kind, version, message in [
        ("a", "rollout", SCHEMA_VERSION + 1, f"schema version {SCHEMA_VERSION + 1}"),
        ("b", "checkpoint", SCHEMA_VERSION, "not a trajectory batch"),
    ]:
        with commit_directory(
            tmp_path / name, kind=kind, schema_version=version, payload=batch.manifest_payload()
        ) as partial:
            batch.write(partial)
        with pytest.raises(BatchError, match=message):
            TrajectoryBatch.load(tmp_path / name)


def test_a_missing_batch_is_refused(tmp_path):
    with pytest.raises(StorageError, match="does not exist"):
        TrajectoryBatch.load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=r"holds no manifest\.json"):
        TrajectoryBatch.load(tmp_path / "empty")


def _rewrite(directory: Path, target: Path, name: str, table: pa.Table) -> Path:
    """A committed batch whose file `name` was honestly digested but holds another table."""
    manifest = verify_directory(directory)
    with commit_directory(
        target, kind=manifest.kind, schema_version=manifest.schema_version, payload=manifest.payload
    ) as partial:
        for file in manifest.files:
            (partial / file).write_bytes((directory / file).read_bytes())
        pq.write_table(table, partial / f"{name}.parquet")
    return target


def test_foreign_columns_and_orphans_are_refused(tmp_path):
    directory = example().save(tmp_path / "b")
    turns = pq.read_table(directory / "turns.parquet")
    images = pq.read_table(directory / "images.parquet")
    other = pa.table([[image_digest(b"x")], [b"x"]], schema=images.schema)
    broken = [
        ("turns", turns.drop_columns(["verdict"]), "it must have"),
        ("turns", turns.slice(0, 2), "the trajectory has 0 turns"),
        (
            "turns",
            turns.set_column(0, "trajectory_id", pa.array(["x"] * 3, pa.string())),
            "which the batch lacks",
        ),
        ("images", pa.concat_tables([images, other]), "its manifest says"),
    ]
    for number, (name, table, message) in enumerate(broken):
        target = _rewrite(directory, tmp_path / f"{number}", name, table)
        with pytest.raises(BatchError, match=message):
            TrajectoryBatch.load(target)


def _row(**changes):
    def change(batch):
        trajectory = batch.trajectories[1]
        trajectory.rows[0] = replace(trajectory.rows[0], **changes)

    return change


def _drop_image(batch):
    batch.images.pop(batch.trajectories[1].turns[0].images[0])


def _swap_image(batch):
    batch.images[batch.trajectories[1].turns[0].images[0]] = b"other"


def _duplicate(batch):
    batch.trajectories.append(batch.trajectories[0])


def _turn_gap(batch):
    batch.trajectories[1].turns[0].turn_index = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop_image, "turn 0 of trajectory 't1' shows the image"),
        (_swap_image, "the image stored under"),
        (_duplicate, "two trajectories are called 't0'"),
        (_turn_gap, "turn 0 of trajectory 't1' says it is turn 1"),
        (_row(row_index=3), "says it is row 3"),
        (_row(images=["f" * 64]), "row 0 of trajectory 't1' shows the image ffff"),
        (_row(loss_mask=np.zeros(4, np.bool_)), "loss_mask of row 0 of trajectory 't1'"),
        (_row(rollout_logprobs=np.zeros(5)), "it must be float32"),
        (_row(columns={"values": np.zeros(4, np.float32)}), "values of row 0"),
        (_row(turn_index=np.array([-1, -1, 0, 0, 1], np.int16)), "turn_index of row 0"),
        (_row(turn_index=np.full(5, -1, np.int16)), "before its first turn"),
    ],
)
def test_an_inconsistent_batch_is_not_saved(tmp_path, change, message):
    batch = example()
    change(batch)
    with pytest.raises(BatchError, match=message):
        batch.save(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_environment_may_leave_a_response_without_a_turn(tmp_path):
    batch = example()
    trajectory = batch.trajectories[0]
    trajectory.turns.clear()
    trajectory.status, trajectory.error = Status.ENV_ERROR, "worker died"
    assert plain(TrajectoryBatch.load(batch.save(tmp_path / "b"))) == plain(batch)


def test_lone_surrogates_of_a_remote_policy_do_not_stop_the_save(tmp_path):
    batch = example()
    batch.trajectories[0].turns[0].response_text = json.loads('"a\\ud800b"')
    loaded = TrajectoryBatch.load(batch.save(tmp_path / "b"))
    assert loaded.trajectories[0].turns[0].response_text == "a?b"
