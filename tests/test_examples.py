"""The examples run, and load what they need; so does the code of the pages."""

import re
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


@pytest.mark.slow
def test_a_policy_loads_in_plain_transformers(vl_dir):
    page = (EXAMPLES.parent / "docs" / "evaluation.md").read_text()
    (code,) = re.findall(r"```python\n(from PIL.*?)```", page, re.S)
    code = code.replace("outputs/latest/checkpoints/0059/policy", str(vl_dir))
    assert str(vl_dir) in code
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip()
