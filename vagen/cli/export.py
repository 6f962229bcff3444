"""`vagen export`: episodes as conversations, for training elsewhere or for `warm_start.data`."""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from vagen.cli.common import RunNotFoundError, load_configs, run_of
from vagen.cli.main import UsageError
from vagen.evaluation.transcript import Transcript, without_token_limits
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.demonstrations import messages_of
from vagen.rollout.levels import draw_levels
from vagen.rollout.types import Status, Trajectory
from vagen.run.run import Run
from vagen.service import environments_of
from vagen.stages.warm_start import ExpertEpisodes

Episodes = Iterator[tuple[list[Trajectory], dict[str, bytes]]]


def export(options: Namespace) -> None:
    """Writes the episodes of a batch, or an expert's on training levels, as OpenAI messages.

    Raises:
        UsageError: Options contradict each other.
        RunNotFoundError: There are no episodes.
        ConfigError: The experiment cannot be used.
    """
    if (options.expert is None) == (options.batch is None):
        raise UsageError("`vagen export` needs an experiment with --expert N, or --from BATCH")
    if options.batch is not None:
        folder = Path(options.batch)
        run = Run.open(run_of(folder.resolve()))
        if not (folder / "trajectories.parquet").is_file():
            raise RunNotFoundError(
                f"{folder} holds no episodes: give a step such as RUN/iterations/0007/rollout"
            )
        config, infra, batch = run.experiment, run.infra, TrajectoryBatch.load(folder)
        episodes: Episodes = iter([(batch.trajectories, batch.images)])
    else:
        config, infra = load_configs(options)
        levels = draw_levels(config, {"train": None})
        endless = without_token_limits(config)
        experts = ExpertEpisodes(endless, levels, Transcript(), infra.environments)
        size = config.warm_start.batch_size
        steps = range(-(-options.expert // size))
        episodes = (
            (played[: options.expert - step * size], images)
            for step in steps
            for played, images in [experts.play(step)]
        )
    prompts = {}
    for config_id, spec in config.envs.items():
        env = environments_of(infra.environments).open(spec.env_name, spec.env_config)
        env.reset(seed=0)
        prompts[config_id] = env.system_prompt()
        env.close()
    path, written, left = Path(options.to), 0, 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for trajectories, images in episodes:
            for each in trajectories:
                if each.status is Status.ENV_ERROR or (options.successes and not each.success):
                    left += 1
                    continue
                row = {
                    "messages": messages_of(each, images, prompts[each.config_id]),
                    "env": each.config_id,
                    "seed": each.seed,
                    "success": each.success,
                    "score": each.score,
                }
                file.write(json.dumps(row) + "\n")
                written += 1
    print(f"{path}: {written:,} conversations" + (f", {left:,} left out" if left else ""))
