"""A warm start from conversations in a file."""

import base64
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vagen import progress
from vagen.cli.main import main
from vagen.config import ConfigError
from vagen.config.yaml_io import dump_yaml
from vagen.envs.images import decode_png, png_bytes
from vagen.experiment.load import load_infra
from vagen.launch.step import run_in_process
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.conversation import ChatRenderer
from vagen.rollout.demonstrations import DemonstrationError, messages_of, read_demonstrations
from vagen.rollout.play import limits_of
from vagen.run.run import Run
from vagen.stages.build import build, load_levels
from vagen.stages.warm_start import Conversations, ExpertEpisodes, warm_start
from vagen.storage import read_manifest


def exported(config, tmp_path, *words):
    """What `vagen export` writes."""
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    file = tmp_path / "chats.jsonl"
    code = main(["export", *words, "--to", str(file)])
    assert code == 0
    return file


def same(found, expected) -> None:
    """Whether two batches of rows and images teach the same."""
    (rows, images), (others, shown) = found, expected
    assert len(rows) == len(others) and images.keys() <= shown.keys()
    for row, other in zip(rows, others, strict=True):
        last = int(np.flatnonzero(other.loss_mask)[-1]) + 1  # an end by truncation is not learnt
        assert row.input_ids[:last].tolist() == other.input_ids[:last].tolist()
        assert row.loss_mask[:last].tolist() == other.loss_mask[:last].tolist()
        assert row.images == other.images[: len(row.images)]


@pytest.mark.parametrize("context", ["concat", "window"])
def test_the_experts_episodes_come_back_token_for_token(
    warm_runs, vl_model, make_experiment, tmp_path, context
):
    window = ["rollout_manager.window_size=2"] if context == "window" else []
    config = make_experiment(
        f"rollout_manager.context={context}", *window, "warm_start.batch_size=4"
    )
    words = [str(tmp_path / "config.yaml"), "--expert", "8"]
    file = exported(config, tmp_path, *words)
    experts = ExpertEpisodes(config, load_levels(warm_runs["tiny:vl"]), vl_model.processor)
    data = make_experiment(
        *(f"rollout_manager.context={context}", *window, "warm_start.batch_size=4"),
        f"warm_start.data={file}",
    )
    conversations = Conversations(data, vl_model.processor)
    assert not conversations.too_long and len(conversations.kept) == 8
    first = experts.batch(0)
    for batch, expected in ((0, first), (1, experts.batch(1)), (2, first)):
        same(conversations.batch(batch), expected)


@pytest.mark.slow
def test_weights_are_those_of_the_experts_warm_start(make_run, tmp_path):
    """Bit for bit; from the file as a step of the pipeline."""
    small = ("warm_start.steps=3", "warm_start.batch_size=4", "warm_start.episodes=8")
    source = make_run(*small)
    file = exported(source.experiment, tmp_path, str(tmp_path / "config.yaml"), "--expert", "8")
    weights = []
    for name, data in (("expert", None), ("file", str(file))):
        warm = source.experiment.warm_start.model_copy(update={"data": data})
        config = source.experiment.model_copy(update={"warm_start": warm})
        infra = load_infra(None, [f"output_dir={tmp_path / name}", "device=cpu"])
        run = Run.create(config, infra)
        build(run)
        warm_start(run) if data is None else run_in_process(str(run.path), "warm_start")
        weights.append((run.warm_start / "policy" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    metrics = read_manifest(run.warm_start).payload["metrics"]
    assert metrics["warm_start/too_long"] == 0 and metrics["warm_start/steps"] == 3


@pytest.fixture
def picture(tmp_path):
    frame = np.random.default_rng(0).integers(0, 255, (56, 56, 3), np.uint8)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(png_bytes(frame))
    return png_bytes(frame)


def forms(png) -> dict[str, dict[str, Any]]:
    """One conversation as others write it, with the file it stands in."""
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": " where?"}]
    said = [
        ("user", "<image> where?"),
        ("assistant", "Left"),
        ("user", "now?"),
        ("assistant", "Up"),
    ]
    placed = [{"role": role, "content": text} for role, text in said]
    sharegpt = [
        {"from": "human" if role == "user" else "gpt", "value": text} for role, text in said
    ]
    system = {"role": "system", "content": "Go."}
    return {
        "url": {"messages": [system, {"role": "user", "content": shown}, *placed[1:]]},
        "path": {"messages": [system, *placed], "images": ["images/a.png"]},
        "bytes": {"messages": [system, *placed], "images": [{"bytes": png, "path": None}]},
        "sharegpt": {"conversations": sharegpt, "images": ["images/a.png"], "system": "Go."},
    }


@pytest.mark.parametrize("form", ["url", "path", "bytes", "sharegpt"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_every_form_is_read_as_the_same_tokens(
    vl_model, make_experiment, tmp_path, picture, form, kind
):
    row = forms(picture)[form]
    file = tmp_path / f"chats.{kind}"
    if kind == "parquet":
        if form == "url":  # parts of several kinds are one column only as JSON-like structs
            row["messages"] = [
                {**m, "content": [{"type": "text", "text": m["content"], "image_url": None}]}
                if isinstance(m["content"], str)
                else m
                for m in row["messages"]
            ]
        pq.write_table(pa.Table.from_pylist([row]), file)
    elif form == "bytes":
        pytest.skip("JSON has no bytes")
    else:
        file.write_text(json.dumps(row if kind == "jsonl" else [row]))
    renderer, limits = ChatRenderer(vl_model.processor), limits_of(make_experiment())
    for source in (str(file), file.as_uri()):
        (found,) = read_demonstrations(source)
        rendered = found.rows(renderer, limits)
        assert rendered is not None
        (only,), images = rendered
        (png,) = images.values()
        assert (decode_png(png) == decode_png(picture)).all()
        answers = [*renderer.answer("Left"), *renderer.answer("Up")]
        assert only.input_ids[only.loss_mask].tolist() == answers
        frame = decode_png(picture)
        parts = [
            *renderer.initial("Go.", {"text": "<image> where?", "images": (frame,)}).ids,
            *renderer.answer("Left"),
            *renderer.following({"text": "now?", "images": ()}).ids,
            *renderer.answer("Up"),
        ]
        assert only.input_ids.tolist() == parts


def test_a_conversation_without_a_system_message_has_none(vl_model, make_experiment, tmp_path):
    file = tmp_path / "chats.jsonl"
    said = [{"role": "user", "content": "where?"}, {"role": "assistant", "content": "Left"}]
    file.write_text(json.dumps({"messages": said}))
    renderer = ChatRenderer(vl_model.processor)
    rendered = read_demonstrations(str(file))[0].rows(renderer, limits_of(make_experiment()))
    assert rendered is not None
    ((row,), _) = rendered
    whole = vl_model.processor.tokenizer.apply_chat_template(said, tokenize=False)
    shown = vl_model.processor.tokenizer.decode(row.input_ids)
    assert whole.startswith(shown) and "system" not in shown


ASK = {"role": "user", "content": "where?"}
SAY = {"role": "assistant", "content": "Left"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", r"it is \[\] \(.*list\), not an object"),
        ('{"instruction": "x"}', "neither `messages` .* but 'instruction'"),
        ({"messages": [ASK]}, "no assistant message follows"),
        ({"messages": [ASK, ASK, SAY]}, r"message 2 \(user\) is out of order"),
        ({"messages": [SAY]}, r"message 1 \(assistant\) is out of order"),
        (
            {"messages": [{"role": "tool", "content": ""}]},
            "`role` must be one of system, developer",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "content of message 1 is None: write"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "a part of message 1"),
        ({"messages": [{**ASK, "content": "<image>"}, SAY]}, "message 1 has more <image> than"),
        ({"messages": [ASK, SAY], "images": ["a.png"]}, "`images` has 1 more than"),
        (
            {"messages": [{**ASK, "content": "<image>"}, SAY], "images": [7]},
            r"is 7 \(.*int\): give a data URL",
        ),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path, line, reason):
    file = tmp_path / "chats.jsonl"
    line = line if isinstance(line, str) else json.dumps(line)
    file.write_text("\n".join([json.dumps({"messages": [ASK, SAY]}), "", line]))
    with pytest.raises(DemonstrationError, match=rf"{re.escape(str(file))}, line 3.*{reason}"):
        read_demonstrations(str(file))


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("b.png", r"there is no picture b\.png: paths are absolute, or relative to file://"),
        ("/nowhere/b.png", "there is no picture /nowhere"),
        ("https://x/b.png", "is not downloaded: give pictures as data URLs"),
        ("data:image/png;base64,&", "a data URL is not base64"),
        ("chats.jsonl", "in no format that Pillow reads"),
    ],
)
def test_a_bad_picture_is_refused_by_its_line(vl_model, make_experiment, tmp_path, image, reason):
    file = tmp_path / "chats.jsonl"
    file.write_text(
        json.dumps({"messages": [{**ASK, "content": "<image>"}, SAY], "images": [image]})
    )
    config = make_experiment(f"warm_start.data={file}")
    with pytest.raises(DemonstrationError, match=f"line 1.*{reason}"):
        Conversations(config, vl_model.processor)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("chats.csv", "", r"must end with \.jsonl, \.json or \.parquet"),
        ("chats.jsonl", "\n", "has no conversations"),
        ("chats.json", "{}", "is no list of conversations"),
        ("chats.parquet", "PAR", "is not Parquet"),
        (None, "", "there is no file"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, content, reason):
    file = tmp_path / (name or "nothing.jsonl")
    if name:
        file.write_text(content)
    with pytest.raises(DemonstrationError, match=reason):
        read_demonstrations(str(file))


def test_too_long_ones_are_counted_and_left_out(vl_model, make_experiment, tmp_path, monkeypatch):
    chats = [[ASK, {**SAY, "content": "Left " * n}] for n in (1, 400, 2)]
    chats.append([{**ASK, "content": "where? " * 400}, SAY])
    chats.append([ASK, SAY] * 60)
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    config = make_experiment(f"warm_start.data={file}", "warm_start.batch_size=3")
    notes: list[str] = []
    monkeypatch.setattr(progress, "note", notes.append)
    found = Conversations(config, vl_model.processor)
    assert found.too_long == 3 and notes[1].startswith("3 of them are left out: they exceed")
    decode = vl_model.processor.tokenizer.decode
    answers = [decode(row.input_ids[row.loss_mask]) for row in found.batch(0)[0]]
    assert [answer.count("Left") for answer in answers] == [1, 2, 1]  # the first again
    assert len(found.batch(1)[0]) == 3
    short = make_experiment(f"warm_start.data={file}", "data.max_prompt_length=2")
    with pytest.raises(DemonstrationError, match=r"all 5 .* exceed data\.max_prompt_length=2"):
        Conversations(short, vl_model.processor)


@pytest.mark.parametrize(
    ("override", "option"),
    [
        ("warm_start.steps=0", "warm_start.data"),
        ("warm_start.random_moves=0.5", "warm_start.random_moves"),
        ("rollout_manager={max_turns: 3, context: compact, window_size: 2}", "warm_start.data"),
    ],
)
def test_what_conversations_cannot_teach_is_refused(make_experiment, override, option):
    with pytest.raises(ConfigError, match=option.replace(".", r"\.")):
        make_experiment("warm_start.data=chats.jsonl", override)


def test_the_plan_counts_conversations(make_experiment, tmp_path, capsys):
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": [ASK, SAY]}) + "\n")
    config = make_experiment(f"warm_start.data={file}", model="tiny:text")
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    assert main(["plan", str(tmp_path / "config.yaml")]) == 0
    assert "of 1 conversations in" in " ".join(capsys.readouterr().out.split())


def test_an_evaluations_successes_are_exported(batch_dirs, tmp_path):
    folder, file = batch_dirs["tiny:vl"], tmp_path / "out.jsonl"
    batch = TrajectoryBatch.load(folder)
    won = [each for each in batch.trajectories if each.success]
    for words, wanted in (([], batch.trajectories), (["--successes"], won)):
        assert main(["export", "--from", str(folder), "--to", str(file), *words]) == 0
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert [row["seed"] for row in rows] == [each.seed for each in wanted]
        for row, trajectory in zip(rows, wanted, strict=True):
            prompt = row["messages"][0]["content"]
            assert row["messages"] == messages_of(trajectory, batch.images, prompt)
            assert row["success"] == trajectory.success
    assert main(["export", "--to", str(file)]) == 2
