from pathlib import Path

import pytest

from components import readme
from vagen.stages.dispatch import STAGES


@pytest.mark.parametrize("name", readme.names())
def test_readme_is_current(name: str):
    path = Path(readme.ROOT) / name / "README.md"
    assert path.read_text() == readme.readme(name), "run `python -m components.readme`"


def test_every_stage_has_a_component():
    # One makes the run, one has all stages of several iterations executed.
    assert set(readme.names()) - set(STAGES) == {"begin", "train"}
    assert set(STAGES) <= set(readme.names())


@pytest.mark.parametrize("path", sorted(Path(readme.ROOT).glob("*/component.py")), ids=str)
def test_components_import_nothing_but_the_stages(path: Path):
    imports = [
        line.split()[1]
        for line in path.read_text().splitlines()
        if line.lstrip().startswith(("import ", "from "))
    ]
    allowed = {
        "typing",
        "kfp",
        "kfp.dsl",
        "components.image",
        "vagen.stages.session",
        "vagen.stages.lifecycle",
    }
    assert set(imports) <= allowed
