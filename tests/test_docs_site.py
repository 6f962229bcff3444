"""The site of docs/ builds, its links lead somewhere, what the tutorial types is understood."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs.site_hooks import on_page_markdown
from vagen.cli.main import COMMANDS, parse
from vagen.envs.template import write_environment
from vagen.experiment.load import load_experiment

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[list[str]]:
    """What the tutorial types after `vagen`."""
    lines = "\n".join(blocks(TUTORIAL, "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line[:1] == ["vagen"]]


@pytest.mark.slow
def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    subprocess.run([*build, str(tmp_path)], cwd=ROOT, check=True, timeout=300)
    api = (tmp_path / "api" / "envs.html").read_text()
    assert "vagen.envs.base.AgentEnv.truth" in api and "Raises" in api
    assert not (tmp_path / "site_hooks.py").exists()
    # A page that is opened from a disk asks nobody for anything.
    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    assert len(pages) > 20
    loaded = r"<(?:script|img|iframe)[^>]*src=\"https?://|<link[^>]*stylesheet[^>]*https?://"
    assert not [found for page in pages for found in re.findall(loaded, page)]


def test_a_link_out_of_docs_becomes_a_path_that_exists() -> None:
    page = SimpleNamespace(
        file=SimpleNamespace(abs_src_path=str(ROOT / "docs" / "x.md"), src_path="x.md")
    )
    assert on_page_markdown("[`vagen/train.py`](../vagen/train.py)", page) == "`vagen/train.py`"
    assert on_page_markdown("[here](../Makefile#top)", page) == "here (`Makefile`)"
    assert on_page_markdown("[a page](metrics.md)", page) == "[a page](metrics.md)"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        on_page_markdown("[gone](../vagen/nowhere.py)", page)


def test_what_the_tutorial_types_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_environment("corridor", tmp_path / "corridor")
    monkeypatch.syspath_prepend(str(tmp_path / "corridor"))
    typed = [words for words in commands() if words[0] in COMMANDS]
    assert len(typed) > 10
    for words in typed:
        options = parse(words)
        if words[0] in ("run", "plan"):
            load_experiment(options.experiment, options.overrides)
    sys.modules.pop("corridor", None)
    for code in blocks(TUTORIAL, "python"):
        compile(code, "right.py", "exec")


def test_pages_stay_short() -> None:
    """Longer pages are read by fewer people: cut before you raise a limit."""
    pages = (ROOT / "docs").rglob("*.md")
    assert len((ROOT / "README.md").read_text().split()) <= 1_000
    assert sum(len(path.read_text().split()) for path in pages) <= 42_300
