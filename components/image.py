"""The container image that components run in on a cluster; locally it is not used."""

import os

IMAGE = os.environ.get("VAGEN_IMAGE", "vagen:latest")
"""Read when a pipeline is compiled; `vagen compile --image` overrides it."""
