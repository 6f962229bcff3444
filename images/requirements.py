"""Prints what vagen needs, for a layer without vagen: `requirements.py pyproject.toml EXTRA...`."""

import re
import sys
import tomllib
from pathlib import Path

file, *extras = sys.argv[1:]
project = tomllib.loads(Path(file).read_text())["project"]
wanted = [*project["dependencies"]]
while extras:
    for requirement in project["optional-dependencies"][extras.pop()]:
        own = re.fullmatch(r"vagen\[(.*)\]", requirement)  # an extra of extras
        extras += own[1].split(",") if own else []
        wanted += [] if own else [requirement]
print(*wanted, sep="\n")
