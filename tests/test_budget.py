"""No package grows beyond its budget; `python benchmarks/structure.py --sizes` prints the sizes."""

from pathlib import Path

import yaml

from benchmarks.structure import sizes

ROOT = Path(__file__).parent.parent
BUDGET = ROOT / "tests" / "budget.yaml"


def test_no_package_grows_beyond_its_budget() -> None:
    budget = yaml.safe_load(BUDGET.read_text())
    found = sizes(ROOT)
    assert found.keys() == budget.keys(), "every package has a line in tests/budget.yaml"
    grown = {room: size for room, size in found.items() if any(map(int.__gt__, size, budget[room]))}
    assert not grown, f"shorten, or raise tests/budget.yaml and say there why: {grown}"
