"""The container image of components on a cluster; not used locally."""

import os

IMAGE = os.environ.get("VAGEN_IMAGE", "vagen:latest")
"""Read when a pipeline is compiled; `vagen compile --image` overrides it."""
