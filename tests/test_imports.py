"""The import graph, checked: no file of the package imports itself by way of others."""

from pathlib import Path

from benchmarks.structure import circles, import_graph

ROOT = Path(__file__).parent.parent


def test_circles_are_found_wherever_an_import_stands(tmp_path: Path) -> None:
    package = tmp_path / "vagen"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "a": "import vagen.b",
        "b": "def f():\n    from vagen import c",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import thing",
        "d": "from vagen.a import thing",
    }.items():
        (package / f"{name}.py").write_text(text)
    assert circles(import_graph(tmp_path)) == [["vagen/a.py", "vagen/b.py", "vagen/c.py"]]


def test_no_circle_of_imports() -> None:
    assert circles(import_graph(ROOT)) == []
