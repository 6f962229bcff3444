"""`vagen judge`: measures a judge, and audits what an experiment rewards."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from vagen.cli.common import load_configs, new_folder
from vagen.cli.main import UsageError
from vagen.config.judge_options import JudgeConfig
from vagen.experiment.load import load_section
from vagen.judge.calibration.frames import load_frames
from vagen.judge.calibration.report import write_report
from vagen.judge.calibration.run import Subject, calibrate, subject_named, subjects_of, write_json
from vagen.judge.scoring import cache_folder
from vagen.learning.audit import AuditRow, audit
from vagen.service import environments_of

_LEAST = 100
"""Minimum number of statements of a calibration."""


def judge(options: Namespace) -> None:
    """Audits an experiment's rewards, or calibrates its judge."""
    {"audit": audit_rewards, "calibrate": calibrate_judge}[options.action](options)


def audit_rewards(options: Namespace) -> None:
    """Prints the rewards of an expert and of policies that should earn less."""
    if options.levels < 1:
        raise UsageError(f"--levels is {options.levels}; it must be at least 1")
    experiment, infra = load_configs(options)
    headed: set[str] = set()

    def show(config_id: str, row: AuditRow) -> None:
        if config_id not in headed:
            headed.add(config_id)
            print(f"{config_id}: {options.levels} levels")
            print(f"  {'':<16} {'success':>7} {'turns':>6} {'reward':>7} {'discounted':>10}")
        print(
            f"  {row.policy:<16} {row.success:7.2f} {row.turns:6.1f} {row.total:7.2f} "
            f"{row.discounted:10.2f}",
            flush=True,
        )

    places = environments_of(infra.environments)
    found = list(audit(experiment, places, levels=options.levels, on_row=show))
    for config_id in sorted(set(experiment.envs) - {each.config_id for each in found}):
        print(f"{config_id}: it has no expert, so that there is nothing to compare with")
    for each in found:
        for note in each.notes:
            print(f"? {note}")
    problems = [problem for each in found for problem in each.problems]
    for problem in problems:
        print(f"! {problem}")
    if not problems:
        print("no other policy earns as much as an expert")


def calibrate_judge(options: Namespace) -> None:
    """Measures a judge on generated statements and writes the report."""
    if options.out is None:
        raise UsageError("--out DIR is missing: the folder for the report")
    if options.statements < _LEAST:
        raise UsageError(f"--statements is {options.statements}; it must be at least {_LEAST}")
    judge, subjects, cache, title = _what(options)
    folder = new_folder(Path(options.out))
    found = calibrate(
        judge, subjects, statements=options.statements, seed=options.seed, cache=cache
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = write_json(folder, judge, found, seed=options.seed, texts=options.texts)
    page = write_report(folder, title, found)
    for name, each in found.items():
        kappa, precision = (
            "–" if value is None else f"{value:.4f}" for value in (each.kappa, each.precision)
        )
        print(
            f"{name}: precision {precision}  recall {each.recall:.4f} (not understood "
            f"{each.unread:.4f})  kappa {kappa}  adversarial refused {each.refused:.4f}, paid "
            f"{each.paid:.4f}  on {each.statements} statements"
        )
    print(f"{path}  {page}")


def _what(options: Namespace) -> tuple[JudgeConfig, list[Subject], Path | None, str]:
    """The judge, what to measure it on, where its answers are kept, and the report's title."""
    frames = None if options.texts is None else load_frames(Path(options.texts))
    if options.env is not None:
        if options.experiment:
            raise UsageError("an experiment, or --env, not both")
        judge = load_section(JudgeConfig, "judge", options.overrides)
        return judge, [subject_named(options.env, frames)], None, _title(judge, [options.env])
    experiment, infra = load_configs(options)
    if not experiment.judge.use_state_reward:
        raise UsageError(f"{experiment.name} has no judge: judge.use_state_reward is false")
    title = _title(experiment.judge, [experiment.name])
    return experiment.judge, subjects_of(experiment, frames), cache_folder(infra), title


def _title(judge: JudgeConfig, of: Sequence[str]) -> str:
    model = f" ({judge.llm.model})" if judge.type != "rule" else ""
    return f"Calibration of the {judge.type} judge{model}: {', '.join(of)}"
