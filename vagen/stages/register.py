"""Registers the trained model as a version of a registered model, if it responds."""

import json
from pathlib import Path
from typing import Any

from vagen import progress, steps
from vagen.config.base import redact
from vagen.envs.images import png_bytes
from vagen.run import layout
from vagen.run.folder import committed, read_results, result
from vagen.run.run import Run
from vagen.service import environments_of
from vagen.stages.tracking import changed_options, tracker_of
from vagen.storage import commit_directory
from vagen.tracking import Example, register_model


def register(run: Run) -> dict[str, Any]:
    """Registers the final policy; moves the alias only to a better one.

    Raises:
        RegistrationError: The registered version cannot be loaded or does not respond.
    """
    checkpoint = run.checkpoint(run.final_iteration)
    run.fetch(checkpoint, layout.POLICY)
    after = read_results(run.fetch(run.evaluation(layout.FINAL)))["by_level"]
    start = run.fetch(run.evaluation(steps.WARM_START))
    before = read_results(start)["by_level"] if committed(start) is not None else None
    tracking_uri, run_id = tracker_of(run).ready()
    registration = register_model(
        checkpoint / layout.POLICY,
        run.experiment.name,
        run_id,
        uri=tracking_uri,
        results=after,
        before=before,
        examples=_examples(run),
        tags={"vagen.changed": changed_options(run), "preset": run.experiment.preset or "none"},
        metrics={"iterations": float(run.final_iteration + 1)},
        seed=run.experiment.seed,
        step=run.last_iteration + 1,
    )
    progress.note(f"{registration.model_uri}: {registration.reason}")
    content = {
        "model_uri": registration.model_uri,
        "alias": registration.alias,
        "reason": registration.reason,
        "mlflow_run_id": run_id,
        "tracking_uri": redact(tracking_uri),
        "policy": str(Path(checkpoint / layout.POLICY)),
    }
    payload = {
        "metrics": {},
        "model_uri": registration.model_uri,
        "iteration": run.final_iteration + 1,
    }
    with commit_directory(
        run.registration, kind="registration", payload=payload, replace=True
    ) as folder:
        (folder / "registration.json").write_text(json.dumps(content, indent=2) + "\n")
    return result(run.registration)


def _examples(run: Run) -> list[Example]:
    """First message of one level per environment."""
    examples = []
    for spec in run.experiment.envs.values():
        env = environments_of(run.infra.environments).open(spec.env_name, spec.env_config, "test")
        observation, _ = env.reset(seed=0)
        examples.append(
            Example(
                observation["text"],
                [png_bytes(frame) for frame in observation["images"]],
                env.system_prompt(),
            )
        )
        env.close()
    return examples
