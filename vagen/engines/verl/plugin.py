"""Registers our parts with verl, in every Ray process (`VERL_USE_EXTERNAL_MODULES`).

verl imports this module during its own import, so only names are registered here; their modules
load on use.
"""

import vagen.engines.verl.platform  # noqa: F401, I001  # must be imported first
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from vagen.engines.verl.mapping import TORCH_ROLLOUT


def _torch_replica() -> type[RolloutReplica]:
    from vagen.engines.verl.torch_server import TorchReplica

    return TorchReplica


RolloutReplicaRegistry.register(TORCH_ROLLOUT, _torch_replica)
# The trainer has no public registry.
base._ROLLOUT_REGISTRY[TORCH_ROLLOUT, "async"] = "vagen.engines.verl.torch_server.TorchAdapter"
