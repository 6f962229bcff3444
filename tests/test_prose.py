"""The prose of the code is free of the phrases that `tools/prose.py` lists."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "prose.py"), *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_tree_has_none_of_the_phrases():
    done = lint()
    assert done.returncode == 0, done.stdout


def test_each_kind_of_prose_is_read(tmp_path: Path):
    code = tmp_path / "module.py"
    code.write_text(
        '"""A module.\n\nArgs:\n    x: Of the module.\n"""\n\nTEXT = "what came of it"\n\n\n'
        'LIMIT = 3\n"""What came of it."""\n# Goes on with the run.\n'
    )
    page = tmp_path / "page.md"
    page.write_text("The model.\n\n```\nlets it go\n```\n\nHow a run stands: `for ever`.\n")
    done = lint(code, page)
    assert done.returncode == 1
    found = [line.removeprefix(f"{tmp_path}/") for line in done.stdout.splitlines()]
    assert found == [
        "module.py:4: `x: Of`: better start with a noun",
        "module.py:11: `What came of`: better the result of",
        "module.py:12: `Goes on with`: better continues",
        "page.md:7: `How a run stands`: better the status of",
    ]
