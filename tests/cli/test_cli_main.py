"""Command lines, messages and exit codes."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from vagen.cli.common import command
from vagen.cli.main import COMMANDS, FAILED, INTERRUPTED, USER_ERROR, main, parse

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_words_and_options_stand_in_any_order() -> None:
    for line in (
        "run sokoban-tiny a.b=1 infra.device=cpu --name x",
        "run --name x experiment=sokoban-tiny infra.device=cpu a.b=1",
        "run a.b=1 --name x sokoban-tiny infra.device=cpu",
    ):
        options = parse(line.split())
        assert options.experiment == "sokoban-tiny"
        assert options.overrides == ["a.b=1"]
        assert options.infra_overrides == ["device=cpu"]
        assert options.name == "x"


def test_values_may_hold_equals_signs_and_minus() -> None:
    options = parse(["run", "a.b=c=d", "e.f=-1"])
    assert options.overrides == ["a.b=c=d", "e.f=-1"]
    assert options.experiment is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run a b", "one experiment at a time, not a, b"),
        ("run --bogus", "unrecognized arguments: --bogus"),
        ("view x y", "unrecognized arguments: y"),
        ("run --stage fly --of x", "invalid choice: 'fly'"),
        ("fly", "invalid choice: 'fly'"),
        ("eval", "the following arguments are required: model"),
        ("eval x --count many", "invalid int value: 'many'"),
    ],
)
def test_command_lines_without_sense_are_refused(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == USER_ERROR
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run nonsense", "unknown experiment `nonsense`"),
        ("run frozenlake-tiny algorithm.lamda=1", "did you mean `algorithm.lam`?"),
        ("run frozenlake-tiny critic.enable=false", "reads the critic's values"),
        ("run frozenlake-tiny infra.devise=cpu", "unknown key `devise`"),
        ("run frozenlake-tiny --infra nowhere", "unknown infra `nowhere`"),
        ("run frozenlake-tiny --name a/b", "--name is 'a/b'"),
        ("run frozenlake-tiny actor_rollout_ref.model.path=/none", "there is no model '/none'"),
        ("run --stage judge", "--stage judge needs its run: --of RUN, or --from BATCH"),
        ("run --stage judge --of x", "--stage judge needs its --iteration"),
        ("run --stage evaluate --of x", "--stage evaluate needs its --evaluation"),
        ("run --stage judge --iteration 0 --of nothing", "unknown run `nothing`"),
        ("run --from x", "one step needs both --stage and --from"),
        ("run --stage judge --from x a=1", "one step uses its run's own configuration"),
        ("run --stage judge --from .", "does not lie in a run's folder"),
        ("resume nothing", "unknown run `nothing`"),
        ("resume .", ". is not a run's folder: it has no config/experiment.yaml"),
        ("view nothing", "unknown run `nothing`"),
        ("run frozenlake-tiny --name " + "a" * 300, "use at most 150 letters"),
        ("eval frozenlake", "there is no model 'frozenlake'"),
        ("eval frozenlake-tiny", "frozenlake-tiny is an experiment, not a model"),
        ("env check FrozenLake is_slipery=true", "did you mean `is_slippery`?"),
        ("env show FrozenLake --config size=a", "`size` is 'a' (override `size=a`)"),
        ("plan frozenlake-tiny infra.output_dir=/proc/x", "infra.output_dir=/proc/x cannot be"),
        ("eval x --count 0", "--count is 0; it must be at least 1"),
        ("eval x --attempts 2", "--attempts goes with --model"),
        ("eval frozenlake-tiny --model opena:m", "did you mean `openai`?"),
        (
            "eval frozenlake-tiny --model expert --attempts 0",
            "`attempts` is 0 (override `attempts=0`)",
        ),
        ("eval frozenlake-tiny --model nowhere", "there is no model 'nowhere'"),
        ("eval frozenlake-tiny --model expert eval.episods=2", "did you mean `episodes`?"),
        ("eval nonsense --model expert", "unknown experiment `nonsense`"),
        ("eval frozenlake-tiny --model expert --prices p", "there is no price file p"),
        ("plan nonsense", "unknown experiment"),
        ("doctor nonsense", "unknown experiment"),
        ("compile nonsense", "unknown experiment"),
    ],
)
def test_user_errors_are_one_message_and_leave_nothing(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(line.split()) == USER_ERROR
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert not captured.out
    assert not list(tmp_path.iterdir())


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="unknown experiment"):
        main(["plan", "nonsense", "--debug"])


def test_faults_of_the_program_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("vagen.cli.plan.plan", broken)
    assert main(["plan"]) == FAILED
    assert "IndexError: list index out of range\nThis is a fault" in capsys.readouterr().err

    def numpy_says(_: object) -> None:
        raise ValueError("operands could not be broadcast")

    monkeypatch.setattr("vagen.cli.plan.plan", numpy_says)
    assert main(["plan"]) == FAILED

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vagen.cli.plan.plan", interrupted)
    assert main(["plan"]) == INTERRUPTED


def test_a_failed_run_is_no_user_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vagen.stages.execute import StageFailed

    def broken(_: object) -> None:
        raise StageFailed("update of iteration 3 failed")

    monkeypatch.setattr("vagen.cli.plan.plan", broken)
    assert main(["plan"]) == FAILED
    assert capsys.readouterr().err == "error: update of iteration 3 failed\n"


def test_help_explains_every_command_without_heavy_imports() -> None:
    code = (
        "import sys; from vagen.cli.main import main\n"
        "try: main(['--help'])\n"
        "finally:\n"
        "    heavy = {'torch', 'transformers', 'mlflow', 'kfp', 'pandas'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, each in COMMANDS.items():
        assert re.search(rf"^    {name} +\w", done.stdout, re.M), name
        assert each.summary.split(":")[0] in done.stdout


def test_a_read_only_output_folder_is_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outputs").write_text("a file where the folder should be")
    assert main(["run", "frozenlake-tiny"]) == USER_ERROR
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "outputs" in message
    assert (tmp_path / "outputs").read_text() == "a file where the folder should be"


def test_the_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"vagen {version('vagen')}\n"


def test_the_help_names_the_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "frozenlake-tiny" in capsys.readouterr().out.partition("experiments:")[2]


def test_without_a_command_or_an_experiment_there_is_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0 and "usage: vagen" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["run"])
    assert ended.value.code == 2 and "vagen run frozenlake-tiny" in capsys.readouterr().out


def test_printed_commands_can_be_pasted(tmp_path, monkeypatch):
    program = tmp_path / "a venv" / "bin" / "vagen"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", "/nowhere")
    run = tmp_path / "outputs" / "lake-1"
    assert command("view", run) == "'a venv/bin/vagen' view lake-1"
    monkeypatch.setenv("PATH", str(program.parent))
    assert command("resume", tmp_path / "lake-1") == f"vagen resume {tmp_path}/lake-1"
