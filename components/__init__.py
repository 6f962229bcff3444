"""One folder per pipeline step: a thin Kubeflow component over `vagen.stages`."""

import hashlib
from pathlib import Path


def digest() -> str:
    """Digest of the steps' code, which a pipeline contains; its library comes from the image."""
    files = sorted(Path(__file__).parent.glob("*/component.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def check(carried: str) -> None:
    """Rejects a pipeline that was compiled from other steps than this image has.

    Args:
        carried: `digest` at the time of compilation.

    Raises:
        ValueError: The digests differ; the message says what to do.
    """
    if carried != digest():
        raise ValueError(
            f"this pipeline was compiled with other code ({carried}) than its image has "
            f"({digest()}): give the image that was built from that code (VAGEN_IMAGE in "
            "k8s/site/site.env, or --image), or build it again (docs/images.md)"
        )
