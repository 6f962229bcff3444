"""Of two processes that work on a run, the one that opened it last may write."""

import json
import os
import subprocess
import sys

import pytest

from vagen.stages.executor import open_run
from vagen.storage import Superseded
from vagen.storage.fence import CLAIM

NEWER = "import sys, vagen.stages.executor as e, pathlib; e.open_run(pathlib.Path(sys.argv[1]))"


@pytest.mark.slow
def test_a_run_that_was_opened_elsewhere_since_gets_nothing_more_from_here(make_run):
    run = make_run()
    execute = open_run(run.path)
    assert json.loads((run.path / CLAIM).read_text())["pid"] == os.getpid()
    subprocess.run([sys.executable, "-c", NEWER, str(run.path)], check=True)
    with pytest.raises(Superseded, match=r"levels was not written: a newer attempt"):
        execute("build")
    assert not run.levels.exists()
    open_run(run.path)("build")
    assert run.levels.is_dir()
