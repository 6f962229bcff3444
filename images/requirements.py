"""Prints what vagen needs, for a layer without vagen: `requirements.py pyproject.toml EXTRA...`."""

import sys
import tomllib
from pathlib import Path

file, *extras = sys.argv[1:]
project = tomllib.loads(Path(file).read_text())["project"]
wanted = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras)]
print(*(requirement for group in wanted for requirement in group), sep="\n")
