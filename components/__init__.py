"""One folder per pipeline step: a thin Kubeflow component over `vagen.stages`."""

import hashlib
from pathlib import Path


def digest() -> str:
    """Of the steps' code, which a pipeline carries; the library that it calls is the image's."""
    files = sorted(Path(__file__).parent.glob("*/component.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def check(carried: str) -> None:
    """Refuses a pipeline that was compiled from other steps than this image has.

    Args:
        carried: `digest` where the pipeline was compiled.

    Raises:
        ValueError: Says what to do.
    """
    if carried != digest():
        raise ValueError(
            f"this pipeline was compiled with other code ({carried}) than its image has "
            f"({digest()}): give the image that was built from that code (VAGEN_IMAGE in "
            "k8s/site/site.env, or --image), or build it anew (docs/images.md)"
        )
