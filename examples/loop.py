"""VAGEN's training loop as a library: play, score, estimate advantages, update.

    python examples/loop.py

Copy it to change the algorithm. It trains a tiny model that it makes itself, on a CPU, and keeps
nothing. `vagen run` does the same with evaluations, checkpoints and tracking (`vagen/train.py`).
"""

from tempfile import TemporaryDirectory

from vagen import (
    InfraConfig,
    add_columns,
    build_tiny_policy,
    draw_levels,
    learn,
    load_experiment,
    make_engine,
    score,
    training_specs,
)

OVERRIDES = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8"]


def train(iterations: int) -> list[dict[str, float]]:
    """Trains without a warm start; returns the metrics of each iteration."""
    experiment = load_experiment("frozenlake-tiny", OVERRIDES)
    levels = draw_levels(experiment, {"train": 64})
    sampling = experiment.actor_rollout_ref.rollout
    history = []
    with TemporaryDirectory() as folder:
        build_tiny_policy(experiment, levels, folder)
        engine = make_engine(experiment, InfraConfig(), folder, version="warm_start")
        for iteration in range(iterations):
            episodes = training_specs(experiment, levels, iteration)
            trajectories, images = engine.play(episodes, sampling=sampling, split="train")
            metrics = score(experiment, trajectories, iteration=iteration)
            metrics |= add_columns(experiment, engine, trajectories, images)
            metrics |= learn(experiment, engine, trajectories, images, iteration)
            history.append(metrics)
        engine.close()
    return history


if __name__ == "__main__":
    for number, found in enumerate(train(iterations=2)):
        print(number, {name: round(value, 4) for name, value in sorted(found.items())})
