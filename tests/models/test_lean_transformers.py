"""What `transformers` finds installed is what it finds by itself."""

import json
import subprocess
import sys

FOUND = """
import json
import sys
{first}
from transformers.utils import import_utils

found = {{}}
for name, asked in sorted(vars(import_utils).items()):
    if name.startswith("is_") and name.endswith("_available") and callable(asked):
        try:
            found[name] = asked()
        except TypeError:  # takes arguments
            pass
for name in ("torch", "PIL", "yaml", "tokenizers", "accelerate", "flash_attn", "google.protobuf"):
    found[name] = import_utils._is_package_available(name, return_version=True)
found["distributions"] = import_utils.PACKAGE_DISTRIBUTION_MAPPING.get("tokenizers", [])
import transformers.models

cache = import_utils.create_import_structure_from_path.cache_info()
print(json.dumps([found, cache.misses - cache.currsize]))
"""


def test_what_is_installed_is_found_alike():
    (lean, again), (plain, plain_again) = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", FOUND.format(first=first)],
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for first in ("import vagen.models.lean_transformers", "")
    )
    assert lean == plain
    assert again == 0 < plain_again  # folders that are read a second time
    assert lean["torch"][0] and lean["PIL"][1] != "N/A" and lean["distributions"] == ["tokenizers"]
