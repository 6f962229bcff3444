import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> str:
    process = subprocess.run(
        ["make", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return process.stdout


def targets(file: str = "Makefile") -> list[str]:
    text = (ROOT / file).read_text().replace("\\\n", " ")
    found = re.search(r"^\.PHONY:(.*)$", text, re.MULTILINE)
    assert found
    return found[1].split()


def copy_makefiles(folder: Path) -> None:
    (folder / "k8s").mkdir()
    for name in ("Makefile", "k8s/k8s.mk"):
        shutil.copy(ROOT / name, folder / name)


def test_help_explains_every_target():
    shown = dict(re.findall(r"^  ([a-z-]+) +(.+)$", make("help"), re.MULTILINE))
    assert sorted(shown) == sorted([*targets(), *targets("k8s/k8s.mk")])
    assert all(len(text) > 10 for text in shown.values())


def test_plain_make_is_help():
    assert make() == make("help")


def test_help_fits_a_terminal():
    assert max(map(len, make("help").splitlines())) <= 100


@pytest.mark.parametrize("word", ["experiment=sokoban-tiny", "EXPERIMENT=sokoban-tiny"])
def test_the_experiment_can_be_chosen(word: str):
    assert "vagen run sokoban-tiny" in make("-n", "run", word)
    assert "vagen run frozenlake-tiny" in make("-n", "run")


def test_steps_get_the_image_of_the_sites_file():
    lines = (ROOT / "k8s/site/site.env").read_text().splitlines()
    (image,) = [line for line in lines if line.startswith("VAGEN_IMAGE=")]
    assert f"{image} .venv/bin/vagen submit" in make("-n", "submit")
    assert "VAGEN_IMAGE=mine:1 " in make("-n", "submit", "VAGEN_IMAGE=mine:1")


@pytest.mark.parametrize(
    "target", [name for name in targets() if name not in ("help", "clean", "system-packages")]
)
def test_every_target_sets_up_what_it_needs(target: str, tmp_path: Path):
    copy_makefiles(tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    steps = make("-n", target, "-C", str(tmp_path))
    assert "-m venv .venv" in steps
    verl = dict.fromkeys(("venv-verl", "test-verl", "bench-gpu", "bench-verl-cpu"), "verl")
    pins = {"test-vllm": "vllm", **verl}.get(target, "laptop")
    extras = r"-e \"\.\[all,[\w,]+\]\""
    assert re.search(rf"pip install .*-c constraints/{pins}.txt [\s\\]*{extras}", steps)


def test_a_python_that_is_too_old_is_refused(tmp_path: Path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    copy_makefiles(tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "laptop.txt").touch()
    process = subprocess.run(
        ["make", "-C", str(tmp_path), "venv", f"PYTHON={old}"], capture_output=True, text=True
    )
    assert process.returncode != 0
    assert "Python 3.11 to 3.13 is needed" in process.stdout
    assert not (tmp_path / ".venv").exists()


def test_continuous_integration_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")
    subprocess.run(["bash", "-n", str(script)], check=True)
