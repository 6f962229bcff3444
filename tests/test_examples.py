"""The examples run, and load what they need."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LOOP = """
import sys
from loop import train
first, second = train(iterations=2)
assert first["actor/grad_norm"] > 0 and second["critic/grad_norm"] > 0
assert first["actor/entropy"] != second["actor/entropy"]
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("vagen.")}
assert not rooms & {"run", "stages", "tracking", "report", "plan", "launch"}, rooms
"""


@pytest.mark.slow
def test_the_loop_is_a_library():
    subprocess.run(
        [sys.executable, "-c", LOOP],
        cwd=EXAMPLES.parent,
        check=True,
        env={
            "PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}",
            "PATH": "/usr/bin:/bin",
            "HOME": "/tmp",
        },
    )
