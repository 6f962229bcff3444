"""Evaluations: scripts on every environment, how fast hosted models are asked, and what kills cost.

- `table`: expert, random, blind, and what `--model` adds, on every tiny experiment; of those that
  `--trained EXPERIMENT=RUN` names also the run's policy and its warm start.
- `throughput`: 64 episodes in flight at a server that answers each request after `--delay` seconds,
  so that it cannot answer more than 64 / delay a second; requests a second as a share of that.
- `kills`: an evaluation killed 20 times at random requests: whether its table is that of one that
  was not, and how many requests were sent again although their answer was in the journal (none) or
  because they were under way.
- `served`: policies on true servers, each `--served EXPERIMENT=POLICY=SPEC`: success on that
  experiment's held-out levels of the model at the endpoint SPEC and of the same directory POLICY
  played here, both sampled, and requests a second. Rows of other environments and servers stay.

    python benchmarks/evaluation.py [table] [throughput] [kills] [served] [--model SPEC ...]
"""

import argparse
import datetime
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "evaluation")]

from chat_server import ChatServer, digest_of  # noqa: E402

from vagen.config.infra import InfraConfig  # noqa: E402
from vagen.envs import make  # noqa: E402
from vagen.evaluation import Evaluated, evaluate, load_evaluation  # noqa: E402
from vagen.experiment.load import load_experiment  # noqa: E402
from vagen.run.run import Run  # noqa: E402

AIM = {"share_of_limit": 0.9, "asked_again": 0}
IN_FLIGHT = 64
KILLS = 20


def expert_answers() -> tuple[str, ...]:
    """What an expert says in FrozenLake, for a server to choose from."""
    spec = load_experiment("frozenlake-tiny", check=False).envs["frozenlake"]
    env, said = make(spec.env_name, spec.env_config, "train"), set()
    for seed in range(30):
        env.reset(seed=seed)
        said.add(env.expert_response())
    return tuple(sorted(said))


def lake(url: str, folder: Path, **changed: Any) -> Evaluated:
    """A hosted model on FrozenLake."""
    options = {
        "environments": {"lake": "frozenlake-tiny"},
        "models": [f"openai:m@{url}"],
        "endpoint": {"concurrency": IN_FLIGHT},
        **changed,
    }
    return evaluate(load_evaluation(options), InfraConfig(output_dir=str(folder)), folder, str)


def table(models: list[str], trained: dict[str, Path], folder: Path) -> dict[str, float | None]:
    """Success of scripts, of the models given and of trained ones, by environment."""
    rows: list[str | dict[str, Any]] = ["expert", "random", "blind", *models]
    environments = {}
    for path in sorted((ROOT / "experiments").glob("*-tiny.yaml")):
        short = path.stem.removesuffix("-tiny")
        environments[short] = str(path)
        if run := trained.get(path.stem):
            of = Run.open(run)
            policies = {"trained": of.newest_policy(), "warm start": of.initial_model()}
            for name, policy in policies.items():
                rows.append({"name": name, "model": policy, "environments": [short]})
    options = {"name": "the tiny experiments", "environments": environments, "models": rows}
    infra = InfraConfig(output_dir=str(folder.parent))
    lines = evaluate(load_evaluation(options | {"count": 64}), infra, folder, str).lines
    return {f"{line.environment}/{line.model}": line.success for line in lines}


def served(environment: str, policy: str, spec: str, server: str, folder: Path) -> dict[str, Any]:
    """A model at an endpoint, and the same model here."""
    entries = [{"model": policy, "name": "here"}, {"model": spec, "name": "served"}]
    options = {"environments": {environment: environment}, "models": entries, "attempts": 4}
    infra = InfraConfig(output_dir=str(folder.parent))
    found = evaluate(load_evaluation(options | {"count": 64}), infra, folder, str)
    lines = {line.model: line for line in found.lines}
    here, there = lines["here"], lines["served"]
    journal = [json.loads(line) for line in (folder / "journal.jsonl").open()]
    seconds = max(e["at"] for e in journal) - min(e["at"] - e["seconds"] for e in journal)
    tokens = there.tokens.total if there.tokens else 0
    gain = there.against
    return {
        "server": server,
        "levels": there.levels,
        "episodes": there.episodes,
        "failed": there.failed,
        "success": there.success,
        "ci95": there.ci95,
        "success_here": here.success,
        "gain_ci95": None if gain is None else gain.ci95,
        "requests": len(journal),
        "requests_per_s": len(journal) / seconds,
        "tokens_per_request": tokens / len(journal),
    }


def throughput(delay: float, scratch: Path) -> dict[str, float]:
    """Requests a second with 64 in flight."""
    server = ChatServer(said=expert_answers(), delay=delay)
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(server,))
    process.start()
    try:
        lake(server.base_url, scratch / "warm", count=4)
        start, cpu = time.perf_counter(), time.process_time()
        found = lake(server.base_url, scratch / "measured", count=64, attempts=8)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        process.terminate()
        process.join()
    journal = [json.loads(line) for line in (scratch / "measured/journal.jsonl").open()]
    sent = sorted(entry["at"] - entry["seconds"] for entry in journal)
    # While there are 64 episodes to play: the last ones have fewer beside them.
    busy = sent[: len(sent) - 3 * IN_FLIGHT]
    rate = (len(busy) - 1) / (busy[-1] - busy[0])
    return {
        "in_flight": IN_FLIGHT,
        "delay_s": delay,
        "limit_per_s": IN_FLIGHT / delay,
        "requests_per_s": rate,
        "share_of_limit": rate * delay / IN_FLIGHT,
        "cpu_ms_per_request": 1000 * cpu / len(sent),
        "episodes_per_min": 60 * found.lines[0].episodes / seconds,
    }


def _serve(server: ChatServer) -> None:
    with server:
        signal.pause()


def kills(scratch: Path) -> dict[str, Any]:
    """An evaluation that is killed again and again."""
    rng, context = random.Random(0), multiprocessing.get_context("fork")
    options = {"count": 24, "attempts": 2, "episodes": 4}
    with ChatServer(said=expert_answers(), delay=0.02) as server:
        whole = lake(server.base_url, scratch / "whole", **options)
        requests = len(server.bodies)
        server.bodies.clear()
        folder, killed, repeated = scratch / "killed", 0, 0

        def again() -> None:
            lake(server.base_url, folder, **options)

        for _ in range(KILLS):
            before, known = len(server.bodies), _known(folder)
            process = context.Process(target=again)
            process.start()
            wanted = before + rng.randrange(1, max(2, requests // KILLS))
            while len(server.bodies) < wanted and process.is_alive():
                time.sleep(0.001)
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
                killed += 1
            process.join()
            time.sleep(0.1)
            repeated += sum(digest_of(body) in known for body in server.bodies[before:])
        before, known = len(server.bodies), _known(folder)
        found = lake(server.base_url, folder, **options)
        repeated += sum(digest_of(body) in known for body in server.bodies[before:])
        return {
            "kills": killed,
            "requests": requests,
            "same_table": found.tables == whole.tables,
            "asked_again": repeated,
            "under_way_at_a_kill": len(server.bodies) - requests,
        }


def _known(folder: Path) -> set[str]:
    path = folder / "journal.jsonl"
    if not path.exists():
        return set()
    lines = path.read_text().rpartition("\n")[0].splitlines()
    return {json.loads(line)["prompt"] for line in lines}


def main() -> None:
    """Runs the parts and writes their results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["table", "throughput", "kills"])
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--trained", action="append", default=[], metavar="EXPERIMENT=RUN")
    parser.add_argument("--served", action="append", default=[], metavar="EXPERIMENT=POLICY=SPEC")
    parser.add_argument("--server", default="", help="which server --served is, e.g. vLLM 0.30.0")
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--page", type=Path, default=Path("outputs/evaluations/bench"))
    options = parser.parse_args()
    path = ROOT / "benchmarks" / "results" / "evaluation.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        if "kills" in options.parts:
            results["kills"] = kills(Path(scratch))
        if "throughput" in options.parts:
            results["throughput"] = throughput(options.delay, Path(scratch))
        for each in options.served if "served" in options.parts else []:
            name, policy, spec = each.split("=", 2)
            row = served(name, policy, spec, options.server, Path(scratch) / name / options.server)
            results.setdefault("served", {})[f"{name} on {options.server}"] = row
    if "table" in options.parts:
        trained = {name: Path(run) for name, _, run in (e.partition("=") for e in options.trained)}
        results["table"] = table(options.model, trained, options.page)
    results |= {"aim": AIM, "date": str(datetime.date.today()), "machine": describe_machine()}
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
