"""Imports what a driver of the distributed engine does, as it does: for `warm_process`."""

from vagen.engines.verl.env_vars import configure

configure(cpu=True)

import ray  # noqa: E402, F401

import vagen.engines.verl.workers  # noqa: E402, F401
