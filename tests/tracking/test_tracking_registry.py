"""A real tiny model, registered in a real SQLite MLflow."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from free_ports import free_ports

from vagen.envs.images import png_bytes
from vagen.models.tiny import build_tiny_model
from vagen.tracking import (
    Example,
    RegistrationError,
    Tracker,
    TrackingError,
    default_uri,
    fetch_registered,
    load_registered,
    open_client,
    register_model,
)

LEVELS = [f"level-{i:03d}" for i in range(64)]
PICTURE = png_bytes(np.zeros((64, 64, 3), np.uint8))
EXAMPLES = [
    Example("What do you see? <image>", images=[PICTURE], system_prompt="Answer."),
    Example("Hello"),
]
NAME = "tiny"


def results(rate: float) -> dict[str, float]:
    return {level: float(i < rate * len(LEVELS)) for i, level in enumerate(LEVELS)}


@pytest.fixture(scope="module")
def output_dir(make_outputs):
    return make_outputs()


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory):
    """Two models of different weights."""
    root = tmp_path_factory.mktemp("models")
    for seed in range(2):
        build_tiny_model(
            "tiny:vl", root / str(seed), corpus=["Hello, what do you see?"], tags=[], seed=seed
        )
    return [root / "0", root / "1"]


@pytest.fixture
def register(output_dir, model_dirs, tmp_path, request):
    """Registers a model under the test's own name, each time from a run of its own."""

    def call(which=0, **options):
        run = Tracker.start(
            experiment="tests", run_name="r", run_dir=tmp_path, output_dir=output_dir
        )
        run.log_metrics({"success": 0.5}, 0)
        options = {
            "model_dir": model_dirs[which],
            "name": request.node.name[:80],
            "run_id": run.run_id,
            "uri": default_uri(output_dir),
            "examples": EXAMPLES,
            "results": results(0.5),
            **options,
        }
        return register_model(**options)

    return call


def holder(registration, output_dir):
    client = open_client(default_uri(output_dir))
    return str(client.get_registered_model(registration.name).aliases["champion"])


def test_a_first_version_gets_the_alias_and_answers(register, output_dir, model_dirs):
    made = register(metrics={"iterations": 40})
    assert (made.version, made.alias, made.gain) == ("1", "champion", None)
    uri = default_uri(output_dir)
    rows = [example.row() for example in EXAMPLES]
    model = load_registered(f"models:/{made.name}@champion", uri=uri)
    responses = model.predict(rows, params={"max_new_tokens": 8})
    assert len(responses) == 2 and all(isinstance(text, str) for text in responses)
    assert responses == model.predict(rows, params={"max_new_tokens": 8})
    again = load_registered(made.model_uri, uri=uri)
    assert again.predict(rows, params={"max_new_tokens": 8}) == responses

    assert (output_dir / "mlartifacts" / "models").is_dir(), "stored beside the database"
    version = open_client(uri).get_model_version(made.name, "1")
    assert version.tags["success"] == "0.5000" and version.tags["iterations"] == "40"
    assert version.tags["vagen.loadable"] == "true"
    stored = load_registered(made.model_uri, uri=uri).unwrap_python_model().language_model
    from vagen.models.loading import load_model

    original = load_model(model_dirs[0]).model.state_dict()
    assert all((stored.model.state_dict()[k] == v).all() for k, v in original.items())


def test_a_version_can_be_fetched_as_a_model_directory(register, output_dir, model_dirs):
    made = register()
    fetched = fetch_registered(f"models:/{made.name}@champion", uri=default_uri(output_dir))
    assert {f.name: f.read_bytes() for f in fetched.iterdir()} == {
        f.name: f.read_bytes() for f in model_dirs[0].iterdir()
    }
    with pytest.raises(TrackingError, match="a version that vagen has registered"):
        fetch_registered(f"models:/{made.name}@nobody", uri=default_uri(output_dir))


def test_pictures_reach_the_model(register, output_dir):
    made = register()
    model = load_registered(made.model_uri, uri=default_uri(output_dir))
    rng = np.random.default_rng(0)
    bright = png_bytes(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    rows = [Example("<image>", images=[png]).row() for png in (PICTURE, bright)]
    dark_text, bright_text = model.predict(rows, params={"max_new_tokens": 24})
    assert dark_text != bright_text
    with pytest.raises(Exception, match="1 images and 0 placeholders"):
        model.predict([Example("no place", images=[PICTURE]).row()])


def test_a_conversation_is_answered_as_its_parts(register, output_dir):
    """Messages with a picture are prompt and picture; the conversation goes on."""
    made = register()
    model = load_registered(made.model_uri, uri=default_uri(output_dir))
    short = {"max_new_tokens": 8}
    [expected] = model.predict([EXAMPLES[0].row()], params=short)
    url = "data:image/png;base64," + EXAMPLES[0].row()["images"][0]
    text, image = {"type": "text", "text": "What do you see? "}, {"type": "image_url"}
    messages = [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": [text, image | {"image_url": {"url": url}}]},
    ]
    assert model.predict([{"messages": messages}], params=short) == [expected]
    messages += [{"role": "assistant", "content": expected}, {"role": "user", "content": "And?"}]
    [more] = model.predict([{"messages": messages}], params=short)
    assert isinstance(more, str)
    with pytest.raises(Exception, match="the last message must be the user's"):
        model.predict([{"messages": messages[:-1]}])


@pytest.mark.slow
def test_mlflow_serves_conversations(register, output_dir):
    """`mlflow models serve` gives the answers of the loaded model."""
    made, uri = register(), default_uri(output_dir)
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    short = {"max_new_tokens": 8}
    model = load_registered(made.model_uri, uri=uri)
    expected = model.predict([{"messages": messages}], params=short)
    [port] = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    command += ["-m", made.model_uri, "--port", str(port)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_REGISTRY_URI": uri,
    }
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                with suppress(httpx.TransportError):
                    if httpx.get(f"{address}/ping").status_code == 200:
                        break
                assert server.poll() is None, "it has ended"
                time.sleep(0.5)
            order = {"dataframe_records": [{"messages": messages}], "params": short}
            reply = httpx.post(f"{address}/invocations", json=order, timeout=120)
            assert reply.status_code == 200, reply.text
            assert reply.json()["predictions"] == expected
        finally:
            os.killpg(server.pid, signal.SIGTERM)


@pytest.mark.slow
def test_rows_may_leave_out_what_is_optional_even_inside_an_event_loop(register, output_dir):
    made = register()
    model = load_registered(made.model_uri, uri=default_uri(output_dir))
    rows = [
        Example("<image>", images=[PICTURE], system_prompt="Answer.").row(),
        {"prompt": "Hello", "images": []},
    ]
    short = {"max_new_tokens": 4}

    async def ask():
        return model.predict(rows, params=short)

    mixed = asyncio.run(ask())
    assert mixed == [model.predict([row], params=short)[0] for row in rows]
    assert model.predict([{"prompt": "Hello"}], params=short) == mixed[1:]


@pytest.mark.slow
def test_the_alias_moves_only_to_a_better_version(register, output_dir):
    first = register()
    worse = register(1, results=results(0.3))
    assert worse.alias is None and "not shown to be better" in worse.reason
    assert worse.gain is not None and worse.gain.gain == pytest.approx(-12 / 64)
    chance = register(1, results=results(0.52))
    assert chance.alias is None and chance.gain is not None and chance.gain.ci95[0] <= 0
    assert holder(first, output_dir) == "1"
    better = register(1, results=results(0.8))
    assert (better.version, better.alias) == ("4", "champion")
    assert better.gain is not None and better.gain.ci95[0] > 0
    assert holder(first, output_dir) == "4"
    tags = open_client(default_uri(output_dir)).get_model_version(first.name, "3").tags
    assert "not shown to be better than version 1" in tags["alias.champion"]


@pytest.mark.slow
def test_a_version_that_learnt_nothing_never_gets_the_alias(register, output_dir):
    same = register(before=results(0.5))
    assert same.alias is None and "not shown to be better than the policy that" in same.reason
    better = register(1, results=results(0.8), before=results(0.5))
    assert better.alias == "champion" and "better than the policy that" in better.reason
    best = register(results=results(0.9), before=results(0.95))
    assert best.alias is None, "it got worse, though it is better than the alias's holder"
    assert holder(best, output_dir) == "2"


@pytest.mark.slow
def test_results_on_other_levels_do_not_compare(register, output_dir):
    register()
    other = register(1, results={"another": 1.0, LEVELS[0]: 1.0})
    assert other.alias is None and other.gain is None
    assert "other levels (1 of 2 are shared)" in other.reason
    assert holder(other, output_dir) == "1"


@pytest.mark.slow
def test_a_holder_without_results_keeps_the_alias(register, output_dir):
    first = register()
    newest = max(
        (output_dir / "mlartifacts").rglob("levels.json"), key=lambda path: path.stat().st_mtime_ns
    )
    newest.write_text("[1, 2")
    second = register(1, results=results(0.9))
    assert second.alias is None and "version 1 has no readable results" in second.reason
    assert holder(first, output_dir) == "1"


def test_repeating_an_interrupted_registration_makes_no_second_version(register, output_dir):
    client = open_client(default_uri(output_dir))
    root = (output_dir / "mlartifacts").as_uri()
    run = client.create_run(client.create_experiment("repeat", artifact_location=root))
    first = register(run_id=run.info.run_id)
    again = register(run_id=run.info.run_id)
    assert again.version == first.version == "1" and again.alias == "champion"
    assert len(client.search_model_versions(f"name = '{first.name}'")) == 1


def test_a_model_that_cannot_be_loaded_never_gets_the_alias(
    register, output_dir, model_dirs, tmp_path
):
    first = register()
    shutil.copytree(model_dirs[1], tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").unlink()
    with pytest.raises(RegistrationError, match="does not answer, so no alias was set"):
        register(model_dir=tmp_path / "broken", results=results(1.0))
    assert holder(first, output_dir) == "1"
    tags = open_client(default_uri(output_dir)).get_model_version(first.name, "2").tags
    assert tags["vagen.loadable"] == "false"


def test_a_model_that_answers_nonsense_never_gets_the_alias(register, output_dir, tmp_path):
    code = tmp_path / "numbers.py"
    code.write_text(
        "import mlflow\n"
        "class Numbers(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input, params=None):\n"
        "        return [1.0] * len(model_input)\n"
        "mlflow.models.set_model(Numbers())\n"
    )
    with pytest.raises(RegistrationError, match=r"2 messages were answered with \[1\.0, 1\.0\]"):
        register(code=code)


def test_a_folder_that_is_no_model_is_refused(register, tmp_path):
    with pytest.raises(RegistrationError, match=r"has no config\.json"):
        register(model_dir=tmp_path)
    with pytest.raises(RegistrationError, match="`results` is empty"):
        register(results={})
