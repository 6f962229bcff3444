"""Checks an installation of vagen, in its image: `python - DIGEST FILES` (images/try.sh).

The steps must be those of the checkout (DIGEST of `components`), every one of its FILES must be
there, and every step must load what it calls.
"""

import ast
import importlib
import sys
from pathlib import Path

import components
import vagen
from components.readme import names

root = Path(components.__file__).parent.parent
assert Path(vagen.__file__).parent.parent == root, "vagen and components come from two places"
assert components.digest() == sys.argv[1], f"the steps are {components.digest()}, not {sys.argv[1]}"
wanted = [name for name in sys.argv[2].split() if not name.endswith((".md", ".yaml"))]
missing = [name for name in wanted if not (root / name).is_file()]
assert wanted and not missing, f"not installed: {missing}"
for name in names():
    step = getattr(importlib.import_module(f"components.{name}.component"), name)
    # What kfp's executor runs is this text, with its imports inside the function.
    source = step.component_spec.implementation.container.command[-1]
    exec(source, {})
    loads = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    exec(ast.unparse(ast.Module(loads, type_ignores=[])), {})
print(f"installed: {len(wanted)} files in {root}, steps {components.digest()}")
