"""Collected runs are seeds of one experiment, and written where one says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def collect(*arguments: object) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "learning.py"), "--collect"]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 2
    return done.stderr


@pytest.mark.slow
def test_what_is_not_one_experiment_is_not_collected(make_run, tmp_path):
    runs = [make_run(f"seed={seed}") for seed in (1, 1)]
    other = make_run("seed=3", "algorithm.lam=0.5")
    assert "--collect needs --out" in collect(runs[0].path)
    out = tmp_path / "out"
    assert "seeds [1, 1]" in collect(runs[0].path, runs[1].path, "--out", out)
    assert "other options differ" in collect(runs[0].path, other.path, "--out", out)
    assert not out.exists()
