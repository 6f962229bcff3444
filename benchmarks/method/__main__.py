"""Which methods can be told from which: `make bench-method`.

    python -m benchmarks.method                    # tokens, gradients, report
    python -m benchmarks.method gate               # observations that a policy drops
    python -m benchmarks.method contexts           # summaries and drops in whole trainings
    python -m benchmarks.method frozenlake report  # studies on the real pipeline: hours each
    python -m benchmarks.method tables             # prints every table of the results

What is finished lies in a file of its own under `--outputs` and is not made again, so that the
command can be stopped and repeated, arm by arm. `report` writes `benchmarks/results/method.json`
and `method-pipeline.json`, the tables of `docs/method.md` and the figures from all that is there.
"""

import argparse
import multiprocessing
from functools import partial
from pathlib import Path

from benchmarks.method import contexts, gate, pipeline, report
from benchmarks.method.jobs import Job, jobs

OWN = {part.FILES: part for part in (gate, contexts)}
"""Parts that run their arms themselves, by `--seeds`."""


def main() -> None:
    known = ["tokens", "gradients", *OWN, *pipeline.STUDIES, "report", "tables"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(known)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes, a thread each")
    parser.add_argument("--outputs", type=Path, default=report.ROOT / "outputs" / "method")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="of the studies")
    parser.add_argument("--note", default="", help="how the machine was used meanwhile")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: there is {', '.join(known)}")
    outputs = options.outputs.absolute()
    for part in options.parts or ("tokens", "gradients", "report"):
        if part == "report":
            studies = {name: study.contrasts for name, study in pipeline.STUDIES.items()}
            report.write(outputs, studies, options.note)
            continue
        if part == "tables":
            print(report.every_table())
            continue
        if part in OWN:
            seeds = options.seeds or range(8)
            with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
                pool.map(partial(OWN[part].run, outputs), seeds, chunksize=1)
            OWN[part].write(outputs, options.note)
            continue
        if part in pipeline.STUDIES:
            pipeline.run_study(part, options.seeds, options.jobs, outputs)
            continue
        todo = [job for job in jobs(part, outputs) if not job.finished()]
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for number, line in enumerate(pool.imap_unordered(Job.run, todo), 1):
                print(f"[{number}/{len(todo)}] {line}", flush=True)


if __name__ == "__main__":
    main()
