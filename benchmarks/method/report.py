from pathlib import Path

ROOT = Path(__file__).parents[2]


def write(outputs: Path) -> None: ...
