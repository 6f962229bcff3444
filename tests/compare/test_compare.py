"""Runs side by side: what is read of them, what is refused, and what the page says."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vagen import progress
from vagen.cli.main import USER_ERROR, main
from vagen.compare import ComparisonError, RunSummary, compare, read_mlflow, read_runs
from vagen.compare.groups import keys_of_methods
from vagen.compare.reading import CURVES
from vagen.experiment.load import load_infra
from vagen.run import layout
from vagen.run.run import Run
from vagen.storage import StorageError, commit_directory
from vagen.tracking import TrackingError, paired_bootstrap, paired_seeds

LEVELS = [f"{number:064x}" for number in range(12)]
Finish = Callable[..., Run]


def wins(share: float, levels: list[str] = LEVELS) -> dict[str, float]:
    """The first levels won, the others lost."""
    return {level: float(index < share * len(levels)) for index, level in enumerate(levels)}


def commit_run(run: Run, by_level: dict[str, float] | None, *, iterations: int = 3, gpus: int = 0):
    """Commits what a training leaves, in the files that its steps write."""
    events = [
        {"time": 0.0, "event": "process_started", "pid": 1},
        {"time": 0.0, "event": "engine_started", "gpus": gpus},
    ]
    for number in range(iterations):
        history = {"train/success": 0.2 * number, "train/score": 0.5}
        with commit_directory(run.step(number, "update"), payload={"history": history}):
            pass
        about = {"stage": "update", "iteration": number, "seconds": 600.0}
        events.append({"time": 900.0 * (number + 1), "event": "stage_finished", **about})
    run.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    if by_level is not None:
        results = {"success": float(np.mean([*by_level.values()])), "by_level": by_level}
        with commit_directory(run.evaluation(layout.FINAL)) as folder:
            (folder / layout.RESULTS).write_text(json.dumps({"split": "test", **results}))


@pytest.fixture
def finish(tmp_path: Path, make_experiment) -> Finish:
    """Makes a finished run of these overrides."""

    def make(name: str, *overrides: str, by_level=None, infra=(), **options: Any) -> Run:
        words = [f"output_dir={tmp_path / 'outputs'}", *infra]
        run = Run.create(make_experiment(*overrides), load_infra(None, words), name)
        commit_run(run, by_level, **options)
        return run

    return make


@pytest.fixture
def two_methods(finish: Finish, tmp_path: Path) -> Path:
    """Two presets, three seeds each; the second wins two more levels."""
    for seed in (1, 2, 3):
        for preset, more in (("vagen_base", 0.0), ("vagen_full", 1 / 6)):
            share = 0.25 + seed / 12 + more
            finish(f"{preset}-{seed}", f"preset={preset}", f"seed={seed}", by_level=wins(share))
    return tmp_path / "outputs"


def figures(page: Path) -> dict[str, Any]:
    return json.loads((page.parent / "comparison.json").read_text())


def test_two_methods_over_their_seeds(two_methods: Path, tmp_path: Path) -> None:
    page = compare([two_methods], folder=tmp_path / "out")
    found = figures(page)
    assert found["by"] == ["preset"]
    assert found["levels"] == len(LEVELS)
    base, full = found["results"]
    assert (base["label"], full["label"]) == ("vagen_base", "vagen_full")
    assert base["seeds"] == full["seeds"] == 3
    assert base["success"]["value"] == pytest.approx(5 / 12)
    low, high = base["success"]["ci95"]
    assert 0 <= low < 5 / 12 < high <= 1
    assert full["against"]["gain"]["value"] == pytest.approx(1 / 6)
    assert full["against"]["pairs"] == 3
    # Wins of seeds 4, 5, 6 against 6, 7, 8 of 12: eight of nine pairs are won, one is a tie.
    assert full["against"]["probability"]["value"] == pytest.approx(8.5 / 9)
    assert found["notes"] == []


def test_of_equal_levels_the_gain_is_what_paired_seeds_finds(finish: Finish, tmp_path: Path):
    """Where a seed wins all levels or none, seeds are all that differs."""
    for seed, won in enumerate((0.0, 1.0, 0.0, 1.0)):
        finish(f"a-{seed}", "critic.optim.lr=1e-3", f"seed={seed}", by_level=wins(0.0))
        finish(f"b-{seed}", "critic.optim.lr=2e-3", f"seed={seed}", by_level=wins(won))
    _, other = figures(compare([tmp_path / "outputs"], folder=tmp_path / "out"))["results"]
    expected = paired_seeds([0, 0, 0, 0], [0, 1, 0, 1])
    assert other["label"] == "lr=0.002"
    assert other["against"]["gain"]["value"] == expected.gain
    assert other["against"]["gain"]["ci95"] == pytest.approx(expected.ci95)


def test_the_page_needs_nothing_else_and_shows_names_as_text(finish: Finish, tmp_path: Path):
    name = "<img src=x onerror=alert(1)>"
    finish("a", "seed=1", f"trainer.project_name='{name}'", by_level=wins(0.5))
    finish("b", "seed=2", by_level=wins(0.75))
    page = compare(
        [tmp_path / "outputs"], by="trainer.project_name", folder=tmp_path / "out", title=name
    )
    html = page.read_text()
    assert name not in html and "&lt;img src=x" in html
    addresses = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert {address.partition(",")[0] for address in addresses} == {
        "data:image/png;base64",
        *("table.csv", "table.md", "table.tex", "comparison.json"),
    }
    assert all((page.parent / one).is_file() for one in addresses if not one.startswith("data:"))
    assert "default-src 'none'" in html


def test_the_table_for_a_paper(two_methods: Path, tmp_path: Path) -> None:
    folder = compare([two_methods], folder=tmp_path / "out", price_per_hour=2.0).parent
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert [row["method"] for row in rows] == ["vagen_base", "vagen_full"]
    assert rows[1]["gain"] == "+0.167"
    assert "| vagen_full | 3 | 0.583 |" in (folder / "table.md").read_text()
    assert r"vagen\_full & 3 & 0.583" in (folder / "table.tex").read_text()


def test_one_seed_has_no_interval_over_seeds(finish: Finish, tmp_path: Path) -> None:
    finish("a", "preset=vagen_base", by_level=wins(0.25))
    finish("b", "preset=vagen_full", by_level=wins(0.75))
    page = compare([tmp_path / "outputs"], folder=tmp_path / "out")
    found = figures(page)
    base, full = found["results"]
    assert base["success"]["ci95"] is full["against"]["gain"]["ci95"] is None
    assert full["against"]["probability"]["ci95"] is full["iqm"]["ci95"] is None
    over_levels = paired_bootstrap([*wins(0.25).values()], [*wins(0.75).values()], seed=0).ci95
    assert full["against"]["over_levels"] == pytest.approx(over_levels)
    assert sum("no interval over seeds exists" in note for note in found["notes"]) == 2
    assert "no interval over seeds exists" in page.read_text()


def test_seeds_that_only_one_method_has_are_in_no_pair(finish: Finish, tmp_path: Path) -> None:
    for preset, seeds in (("vagen_base", (1, 2)), ("vagen_full", (2, 3)), ("aico", (4, 5))):
        for seed in seeds:
            finish(f"{preset}-{seed}", f"preset={preset}", f"seed={seed}", by_level=wins(seed / 8))
    places = [tmp_path / "outputs" / name for name in ("vagen_base-1", "vagen_base-2")]
    page = compare([*places, tmp_path / "outputs"], folder=tmp_path / "out")
    found = {one["label"]: one["against"] for one in figures(page)["results"]}
    assert found["vagen_full"]["pairs"] == 1
    assert found["vagen_full"]["gain"]["value"] == 0
    assert found["aico"]["pairs"] == 0 and found["aico"]["gain"]["ci95"] is None


def test_other_levels_are_refused(finish: Finish, tmp_path: Path) -> None:
    finish("a", "seed=1", by_level=wins(0.5, LEVELS[:6]))
    finish("b", "seed=2", by_level=wins(0.5, LEVELS[6:]))
    with pytest.raises(ComparisonError, match="a and b were measured on different levels"):
        compare([tmp_path / "outputs"], folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_only_common_levels_count(finish: Finish, tmp_path: Path) -> None:
    finish("a", "seed=1", by_level=wins(0.5))
    finish("b", "seed=2", by_level=wins(1.0, LEVELS[:6]))
    found = figures(compare([tmp_path / "outputs"], folder=tmp_path / "out"))
    assert "6 of 12 held-out levels are common" in found["notes"][0]
    assert found["results"][0]["success"]["value"] == 1.0


def test_what_cannot_be_compared_is_refused(finish: Finish, tmp_path: Path) -> None:
    outputs, out = tmp_path / "outputs", tmp_path / "out"
    finish("a", "seed=1", by_level=wins(0.5))
    finish("b", "seed=1", by_level=wins(0.5))
    finish("c", "seed=1", "critic.optim.lr=0.5", by_level=wins(0.5))
    refused: list[tuple[str, list[str | Path], dict[str, Any]]] = [
        ("two runs of all runs have seed = 1", [outputs / "a", outputs / "b"], {}),
        ("distinguish them with --by", [outputs / "a", outputs / "c"], {"by": "preset"}),
        ("did you mean `preset`", [outputs / "a"], {"by": "presett"}),
        ("unknown key `sed`", [outputs / "a"], {"over": "sed"}),
        ("unknown method `b`", [outputs / "a"], {"baseline": "b"}),
        ("unknown run `nowhere`", ["nowhere"], {}),
        ("neither a run's folder", [outputs / "a" / "config"], {}),
        ("a comparison needs runs", [], {}),
        ("price of an hour", [outputs / "a"], {"price_per_hour": -1.0}),
    ]
    for match, runs, options in refused:
        with pytest.raises(ComparisonError, match=match):
            compare(runs, folder=out, **options)
    results = outputs / "a" / "evaluations" / "final" / "results.json"
    results.write_text(results.read_text().replace("1.0", "0.0"))
    with pytest.raises(StorageError, match=r"results\.json"):
        compare([outputs / "a"], folder=out)


def test_a_run_at_work_is_in_the_curves_alone(finish: Finish, tmp_path: Path) -> None:
    finish("a", "seed=1", by_level=wins(0.5))
    finish("b", "seed=2", iterations=1)
    page = compare([tmp_path / "outputs"], folder=tmp_path / "out")
    found = figures(page)
    assert found["results"][0]["seeds"] == 1
    assert "in the curves only: b" in found["notes"][0]
    assert (page.parent / "train-success.png").stat().st_size > 1000


@pytest.mark.slow
def test_methods_are_told_apart_by_as_few_options_as_do(finish: Finish, tmp_path: Path) -> None:
    for seed in (1, 2):
        for lr in ("1e-4", "1e-3"):
            words = [f"critic.optim.lr={lr}", f"trainer.project_name=lr-{lr}"]
            finish(f"{lr}-{seed}", f"seed={seed}", *words, by_level=wins(0.5))
    found = figures(compare([tmp_path / "outputs"], folder=tmp_path / "out"))
    assert found["by"] == ["critic.optim.lr"]
    assert {label: [*runs] for label, runs in found["groups"].items()} == {
        "lr=0.001": ["1", "2"],
        "lr=0.0001": ["1", "2"],
    }
    found = figures(compare([tmp_path / "outputs"], over="critic.optim.lr", folder=tmp_path / "o"))
    assert found["by"] == ["seed"]


def test_keys_with_the_same_last_word_are_told_apart(finish: Finish, tmp_path: Path) -> None:
    rates = ("critic.optim.lr", "actor_rollout_ref.actor.optim.lr")
    finish("a", *(f"{key}=1e-3" for key in rates), by_level=wins(0.5))
    finish("b", *(f"{key}=2e-3" for key in rates), by_level=wins(0.5))
    by = [*rates, "judge.type"]
    found = figures(compare([tmp_path / "outputs"], by=by, folder=tmp_path / "out"))["results"]
    assert found[1]["label"] == "critic.optim.lr=0.002 actor.optim.lr=0.002 type=rule"


def test_options_below_a_key_name_a_method(finish: Finish, tmp_path: Path) -> None:
    (plain,) = read_runs([finish("a", by_level=wins(0.5)).path])
    key = next(key for key in plain.options if key.endswith("reward_overrides"))
    finish("b", f"{key}.step=-0.2", f"{key}.hole=-2", by_level=wins(0.5))
    found = figures(compare([tmp_path / "outputs"], by=[key], folder=tmp_path / "out"))["results"]
    labels = ["reward_overrides={}", "reward_overrides={step: -0.2, hole: -2.0}"]
    assert [each["label"] for each in found] == labels


def test_a_run_made_longer_has_the_length_that_it_has_now(finish: Finish, tmp_path: Path) -> None:
    finish("longer", "trainer.total_training_steps=2").extend(5)
    finish("long", "trainer.total_training_steps=5", "seed=8")
    longer, long = sorted(read_runs([tmp_path / "outputs"]), key=lambda run: run.name, reverse=True)
    assert longer.options["trainer.total_training_steps"] == "5"
    assert keys_of_methods([longer, long], "seed") == []


def test_a_method_that_mixes_others_is_told(finish: Finish, tmp_path: Path) -> None:
    finish("a", "seed=1", "critic.optim.lr=1e-3", by_level=wins(0.5))
    finish("b", "seed=2", "critic.optim.lr=1e-4", by_level=wins(0.5))
    page = compare([tmp_path / "outputs"], by="preset", folder=tmp_path / "out")
    assert "differ in more than seed: critic.optim.lr" in figures(page)["notes"][0]


@pytest.mark.slow
def test_what_it_took(finish: Finish, tmp_path: Path) -> None:
    """Three iterations of 15 minutes; an engine on 8 GPUs all the while."""
    outputs = tmp_path / "outputs"
    finish("cpu", "seed=1", by_level=wins(0.5), infra=["gpu_hour_price=9"])
    finish("gpu", "seed=2", by_level=wins(0.5), gpus=8, infra=["gpu_hour_price=2"])

    def cost(name: str, price: float | None = None) -> dict[str, Any]:
        page = compare([outputs / name], folder=tmp_path / "out", price_per_hour=price)
        return figures(page)["costs"][0]

    on_gpu = cost("gpu")
    assert (on_gpu["device"], on_gpu["device_hours"], on_gpu["cost"]) == ("GPU", 6.0, 12.0)
    assert on_gpu["hours"] == 0.75
    assert on_gpu["seconds"] == {"update": 1800.0}
    assert cost("gpu", 3.0)["cost"] == 18.0
    assert cost("cpu")["cost"] is None, "a GPU's price is none of a CPU"
    assert cost("cpu", 4.0)["cost"] == 3.0


@pytest.mark.parametrize("kind", ["file", pytest.param("s3", marks=pytest.mark.slow)])
def test_runs_are_read_from_their_store(kind, finish, tmp_path, monkeypatch, request) -> None:
    store = request.getfixturevalue("bucket") if kind == "s3" else (tmp_path / "store").as_uri()
    for seed in (1, 2):
        by_level = wins(seed / 4)
        run = finish(f"s-{seed}", f"seed={seed}", by_level=by_level, infra=[f"store={store}"])
        run.mirror.begin()
        run.mirror.push()
    monkeypatch.setenv("VAGEN_SCRATCH", str(tmp_path / "elsewhere"))
    one = figures(compare([f"{store}/s-1"], folder=tmp_path / "one"))
    assert one["results"][0]["success"]["value"] == 0.25
    both = figures(compare([store], folder=tmp_path / "both"))
    assert both["results"][0]["success"]["value"] == pytest.approx(0.375)
    assert both["costs"][0]["hours"] == 0.75
    with pytest.raises(ComparisonError, match="no run at"):
        compare([f"{store}/s-1/evaluations"], folder=tmp_path / "none")


def test_the_command(two_methods: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["compare", "outputs", "vagen_base-1", "--by", "preset", "--baseline", "vagen_full"]
    assert main([*words, "--to", "out"]) == 0
    assert "| vagen_base | 3 | 0.417 |" in capsys.readouterr().out
    assert figures(tmp_path / "out" / "index.html")["baseline"] == "vagen_full"
    assert main(["view", "out", "--no-open"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "index.html")
    assert main([*words, "--to", "out"]) == USER_ERROR
    assert main(["compare"]) == USER_ERROR
    assert main(["compare", "vagen_base-9"]) == USER_ERROR
    assert "did you mean `vagen_base-" in capsys.readouterr().err
    assert main(["compare", "--from-mlflow", "vagen"]) == USER_ERROR
    assert "there is no MLflow database" in capsys.readouterr().err
    assert main(["compare", "--from-mlflow", "vagen@here"]) == USER_ERROR
    assert "`--from-mlflow` is 'here'" in capsys.readouterr().err


@pytest.mark.slow
def test_trainings_are_the_same_from_their_folders_and_from_mlflow(
    make_outputs, make_experiment, tmp_path: Path
) -> None:
    from vagen.train import train

    outputs = make_outputs()
    infra = load_infra(None, [f"output_dir={outputs}", "device=cpu", "threads=1"])
    words = ["trainer.test_freq=1", "trainer.total_training_steps=2", "warm_start.steps=2"]
    for seed in (1, 2):
        experiment = make_experiment(*words, f"seed={seed}", model="tiny:text")
        train(run := Run.create(experiment, infra, f"one-{seed}"))
    run.extend(3)
    train(Run.open(run.path))
    progress.close()
    address = f"sqlite:///{outputs}/mlflow.db"
    from_folders, from_mlflow = read_runs([outputs]), read_mlflow(f"vagen@{address}")
    assert [run.name for run in from_mlflow] == [run.name for run in from_folders]
    for one, other in zip(from_folders, from_mlflow, strict=True):
        assert other.options == one.options
        assert other.by_level == one.by_level and len(one.by_level) == 6
        assert points(other) == points(one)
        assert {name for _, name, _ in points(one)} == set(CURVES)
        assert other.hours == pytest.approx(one.hours, abs=0.01)
        assert other.seconds.keys() >= {"rollout", "update", "warm_start"}
    comparison = compare(from_mlflow, by=["preset"], folder=tmp_path / "out")
    assert figures(comparison)["results"][0]["seeds"] == 2
    with pytest.raises(TrackingError, match="did you mean `vagen`"):
        read_mlflow(f"vagne@{address}")


def points(run: RunSummary) -> set[tuple[float, str, float]]:
    """Everything a curve is drawn of."""
    return {
        (row["iteration"], name, row[name]) for row in run.history for name in CURVES if name in row
    }
