"""Which methods can be told from which: `make bench-method`.

    python -m benchmarks.method            # tokens, gradients, report
    python -m benchmarks.method pipeline   # the same questions on the real pipeline: hours

What is finished lies in a file of its own under `--outputs` and is not made again, so that the
command can be stopped and repeated, arm by arm. `report` writes `benchmarks/results/method.json`,
the tables of `docs/method.md` and the figures from all that is there.
"""

import argparse
import multiprocessing
from pathlib import Path

from benchmarks.method import report
from benchmarks.method.jobs import Job, jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["tokens", "gradients", "report"])
    parser.add_argument("--jobs", type=int, default=2, help="processes, a thread each")
    parser.add_argument("--outputs", type=Path, default=report.ROOT / "outputs" / "method")
    options = parser.parse_args()
    outputs = options.outputs.absolute()
    for part in options.parts:
        if part == "report":
            report.write(outputs)
            continue
        todo = [job for job in jobs(part, outputs) if not job.finished()]
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for number, line in enumerate(pool.imap_unordered(Job.run, todo), 1):
                print(f"[{number}/{len(todo)}] {line}", flush=True)


if __name__ == "__main__":
    main()
