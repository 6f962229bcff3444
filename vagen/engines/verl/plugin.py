"""What verl loads in every Ray process (`VERL_USE_EXTERNAL_MODULES`): our parts, by their names.

verl imports this while it is being imported itself: only names are registered here, the modules
behind them load when they are used.
"""

import vagen.engines.verl.platform  # noqa: F401, I001  # its patches come before what they patch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from vagen.engines.verl.mapping import TORCH_ROLLOUT


def _torch_replica() -> type[RolloutReplica]:
    from vagen.engines.verl.torch_server import TorchReplica

    return TorchReplica


RolloutReplicaRegistry.register(TORCH_ROLLOUT, _torch_replica)
# The trainer's side has no public registry.
base._ROLLOUT_REGISTRY[TORCH_ROLLOUT, "async"] = "vagen.engines.verl.torch_server.TorchAdapter"
