"""`freeze_vision_tower` on the local engine: the tower stays, everything else learns."""

import pytest
import torch

from vagen.config import ConfigError
from vagen.engines.local.engine import LocalEngine
from vagen.experiment.load import load_experiment
from vagen.rollout.batch import TrajectoryBatch

FROZEN = "actor_rollout_ref.model.freeze_vision_tower=true"


@pytest.mark.slow
def test_the_tower_of_both_networks_stays(make_experiment, vl_dir, batch_dirs):
    batch = TrajectoryBatch.load(batch_dirs["tiny:vl"])
    rows = [row for trajectory in batch.trajectories for row in trajectory.rows]
    engine = LocalEngine(make_experiment(FROZEN), vl_dir, device=torch.device("cpu"))
    networks = {"actor": engine.actor.model, "critic": engine.critic}
    before = {
        key: {name: weight.clone() for name, weight in module.named_parameters()}
        for key, module in networks.items()
    }
    engine.update(rows, batch.images, seed=3)
    for key, module in networks.items():
        moved = {n for n, w in module.named_parameters() if not torch.equal(w, before[key][n])}
        tower = {name for name in before[key] if "visual." in name}
        assert tower and not tower & moved
        assert len(moved) > 5
    for optimizer in (engine.learners["actor"].optimizer, engine.learners["critic"].optimizer):
        learnt = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        assert 0 < learnt < sum(w.numel() for w in engine.actor.model.parameters())


def test_adapters_and_a_frozen_tower_are_refused():
    with pytest.raises(ConfigError, match="leave the tower's layers out of their target_modules"):
        load_experiment("frozenlake-tiny", [FROZEN, "actor_rollout_ref.model.lora_rank=4"])
