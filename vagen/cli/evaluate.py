"""`vagen eval`."""

import time
from argparse import Namespace
from pathlib import Path

from vagen.cli.common import command, load_configs, new_folder, run_named
from vagen.cli.main import UsageError
from vagen.experiment.load import load_experiment, load_infra, named_files
from vagen.models.files import check_model
from vagen.run import layout
from vagen.run.layout import is_uri


def evaluate(options: Namespace) -> None:
    """Measures a model, or compares several, on levels that were not trained on."""
    if options.count is not None and options.count < 1:
        raise UsageError(f"--count is {options.count}; it must be at least 1")
    from vagen.cli.evaluate_models import evaluate_models, fetch_stored, is_evaluation

    if is_uri(options.model) and not options.models:
        fetch_stored(options)
    if options.models or is_evaluation(Path(options.model)):
        evaluate_models(options)
        return
    _refuse_flags(options)
    from vagen.run.run import Run

    split = options.levels or "test"

    run, run_dir = None, run_named(options.model)
    if run_dir is None:
        experiment, infra = load_configs(options)
        model = options.model
        if model in named_files("experiments"):
            raise UsageError(
                f"{model} is an experiment, not a model or a run; to play its levels: "
                f"vagen eval {model} --model expert (or any model)"
            )
        check_model(model)
    else:
        experiment = load_experiment(
            options.experiment or run_dir / layout.EXPERIMENT, options.overrides
        )
        infra = load_infra(options.infra or run_dir / layout.INFRA, options.infra_overrides)
        run = Run.open(run_dir)
        run.check_config()
        model = run.newest_policy()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = f"{experiment.name}-{split}-{stamp}"
    if options.to:
        out = new_folder(Path(options.to))
    elif run_dir is not None:
        out = run_dir / layout.EVALUATIONS / folder
    else:
        out = Path(infra.output_dir) / layout.EVALUATIONS / folder

    from vagen.progress import close
    from vagen.stages.evaluate import evaluate_model

    try:
        results = evaluate_model(model, experiment, infra, split, options.count, out)["results"]
    finally:
        close()
    if run is not None and run.mirror is not None and out.is_relative_to(run.path):
        run.mirror.push_evaluation(out)
    interval = "[{:.3f}, {:.3f}]".format(*results["ci95"]) if results["ci95"] else "(no interval)"
    print(f"success {results['success']:.3f}  {interval} on {results['levels']} levels, {model}")
    for name, label in (("pass_at", "pass@"), ("pass_all", "pass^")):
        found = results.get(name, {})
        if found:
            print("  ".join(f"{label}{k} {value:.3f}" for k, value in found.items()))
    print(f"{out}  ({command('view', out)})")


def _refuse_flags(options: Namespace) -> None:
    """Rejects options that need `--model`."""
    for name in ("attempts", "baseline", "prices", "max_cost", "max_tokens", "rerun"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} goes with --model, or with an evaluation's file or "
                f"folder: vagen eval EXPERIMENT --model {options.model} --{name.replace('_', '-')}"
            )
    if options.eval_overrides:
        raise UsageError(f"eval.{options.eval_overrides[0]} goes with --model")
