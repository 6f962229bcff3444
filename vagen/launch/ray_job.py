"""Runs a stage as a Ray job: submits or finds it, follows its log and returns its result.

Every attempt at a stage has a fixed submission id, so that a restarted pod of a step finds the job
of its predecessor and follows it.
"""

import asyncio
import importlib.util
import shlex
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vagen.cluster import ClusterError, Dashboard, shortened
from vagen.launch.protocol import (
    ERRORS,
    JobFailed,
    Lost,
    StepOutcome,
    format_command,
    parse_verdict,
)
from vagen.run.layout import run_name

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

ID_LIMIT = 100
"""Maximum characters of a submission id, which is part of a log file's name on the head."""
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts and pauses of the launcher in seconds."""

    answer: float = 15.0
    """Timeout of a request."""
    look: float = 1.0
    """Pause between polls of a job's state; its log continues for seconds after its end."""
    reconnect: float = 1.0
    """Pause before a failed request or broken connection is retried."""
    unreachable: float = 120.0
    """Time after which an unresponsive head counts as lost."""
    stop: float = 60.0
    """Timeout for a stopped job to end."""
    backoff: float = 5.0
    """Pause before the second attempt; doubles with every further one."""
    longest_backoff: float = 120.0


PATIENCE = Patience()


class StageJob:
    """One stage of a run as a job; tracks the printed part of its logs.

    Args:
        run: URI of the run.
        stage: A stage, `train` or `ray-logs`.
        arguments: Arguments of the job.
        seconds: Time limit of the job.
        patience: Timeouts.
        say: Prints a line of the log.
    """

    def __init__(
        self,
        run: str,
        stage: str,
        arguments: dict[str, Any],
        *,
        seconds: float,
        patience: Patience,
        say: Callable[[str], Any],
    ) -> None:
        self._task = task_name(run, stage, arguments)
        self._entrypoint = shlex.join(format_command(run, stage, arguments))
        self._seconds = seconds
        self._patience = patience
        self._say = say
        self._logs: dict[str, Log] = {}

    def perform(self, dashboard: Dashboard) -> dict[str, Any]:
        """Submits the job, or attaches to a running one; returns its result.

        Raises:
            JobRefused: The stage rejected the user's input.
            JobFailed: The stage failed, or the job was stopped.
            Lost: A retry may help.
        """
        jobs = RayJobs(dashboard, self._patience)
        job = self._submitted(jobs)
        log = self._logs.setdefault(job, Log(self._say))
        follower = Follower(jobs, job, log, self._patience)
        details = asyncio.run(follower.follow(self._seconds))
        return _outcome(job, details, log)

    def _submitted(self, jobs: "RayJobs") -> str:
        """The newest attempt if it is running, otherwise a new one.

        After a success too, a new attempt is made: it finds the committed result.
        """
        attempts = jobs.attempts(self._task)
        number, newest = attempts[-1] if attempts else (0, None)
        if newest is not None and not newest.status.is_terminal():
            return str(newest.submission_id)
        job = f"{self._task}-{number + 1}"
        self._logs.pop(job, None)  # of an earlier head
        jobs.submit(job, self._entrypoint)
        return job


class RayJobs:
    """Ray's job API of one cluster, with retries while the head does not respond.

    Every method raises `Lost` after `Patience.unreachable` without response, and `ClusterError` if
    the token is rejected.
    """

    def __init__(self, dashboard: Dashboard, patience: Patience) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ClusterError("this asks Ray, which is not installed: pip install 'vagen[verl]'")
        self._patience = patience
        self.client = self._call(lambda: _client(dashboard, patience.answer))

    def attempts(self, task: str) -> "list[tuple[int, JobDetails]]":
        """The attempts at a task on this head and their numbers, oldest first."""
        prefix = f"{task}-"
        found = [
            (int(number), job)
            for job in self._call(self.client.list_jobs)
            if (number := (job.submission_id or "").removeprefix(prefix)).isdigit()
        ]
        return sorted(found, key=lambda one: one[0])

    def find(self, job: str) -> "JobDetails | None":
        """A job by its submission id; None if this head does not have it."""

        def ask() -> "JobDetails | None":
            try:
                return self.client.get_job_info(job)
            except RuntimeError as error:
                if "status code 404" in str(error):
                    return None
                raise

        return self._call(ask)

    def newest(self) -> "JobDetails | None":
        """The last submitted job."""
        jobs = [job for job in self._call(self.client.list_jobs) if job.submission_id]
        return max(jobs, key=lambda job: job.start_time or 0, default=None)

    def submit(self, job: str, entrypoint: str) -> None:
        """Submits a job unless its id exists: from another launcher, or an earlier request without
        response.
        """
        end = time.monotonic() + self._patience.unreachable
        while self.find(job) is None:
            try:
                self._once(lambda: self.client.submit_job(entrypoint=entrypoint, submission_id=job))
            except Lost:
                if time.monotonic() > end:
                    raise
                time.sleep(self._patience.reconnect)

    def stop(self, job: str) -> None:
        """Asks Ray to stop a job."""
        self._call(lambda: self.client.stop_job(job))

    def read_log(self, job: str) -> str:
        """The whole log of a job."""
        return self._call(lambda: self.client.get_job_logs(job))

    def _call(self, request: Callable[[], Any]) -> Any:
        end = time.monotonic() + self._patience.unreachable
        while True:
            try:
                return self._once(request)
            except Lost:
                if time.monotonic() > end:
                    raise
                time.sleep(self._patience.reconnect)

    @staticmethod
    def _once(request: Callable[[], Any]) -> Any:
        from ray.exceptions import AuthenticationError

        try:
            return request()
        except AuthenticationError as error:
            raise ClusterError(
                "the Ray cluster refuses the token: its secret was changed after the cluster was "
                "made; delete the cluster (`vagen cluster delete`) and run the step again"
            ) from error
        # Ray's client raises these for unexpected responses and for none.
        except (OSError, RuntimeError) as error:
            raise Lost(f"Ray's head gives unexpected responses: {error}") from error


@dataclass
class Log:
    """The printed part of a job's log."""

    say: Callable[[str], Any]
    """Prints a whole line."""
    characters: int = 0
    """Number of characters already processed."""
    verdict: StepOutcome | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _rest: str = ""

    def take(self, text: str, position: int) -> None:
        """Processes a part of the log and prints new lines.

        Args:
            text: A part of the log.
            position: Number of characters before it.
        """
        text = text[max(0, self.characters - position) :]
        self.characters += len(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if (verdict := parse_verdict(line)) is not None:
                self.verdict = verdict
            else:
                self.tail.append(line)
                self.say(line)


class Follower:
    """Follows a job until its end, across broken connections."""

    def __init__(self, jobs: RayJobs, job: str, log: Log, patience: Patience) -> None:
        self._jobs, self._job, self._log = jobs, job, log
        self._patience = patience

    async def follow(self, seconds: float) -> "JobDetails":
        """Prints the log while it grows; returns Ray's final details of the job.

        Raises:
            Lost: The head is gone, was restarted, or does not respond.
            JobFailed: The job exceeded `seconds` and was stopped.
        """
        deadline = time.monotonic() + seconds
        copying = asyncio.create_task(self._copy())
        try:
            while True:
                await asyncio.wait({copying}, timeout=self._patience.look)
                details = self._jobs.find(self._job)
                if details is None:
                    raise Lost(f"Ray's head was restarted, and job {self._job} was lost")
                if details.status.is_terminal():
                    self._log.take(self._jobs.read_log(self._job), 0)
                    return details
                if time.monotonic() > deadline:
                    self._stop()
                    raise JobFailed(
                        f"job {self._job} took longer than {seconds:.0f} s, and was stopped: raise "
                        "infra.kubernetes.step_hours, or find out why it is slow"
                    )
                if copying.done():
                    copying.result()  # raises errors other than broken connections
                    await asyncio.sleep(self._patience.reconnect)
                    copying = asyncio.create_task(self._copy())
        finally:
            copying.cancel()
            with suppress(asyncio.CancelledError):
                await copying

    async def _copy(self) -> None:
        """Reads the log from its start until the connection ends."""
        import aiohttp

        position = 0
        with suppress(aiohttp.ClientError, OSError, RuntimeError):
            async for part in self._jobs.client.tail_job_logs(self._job):
                self._log.take(part, position)
                position += len(part)

    def _stop(self) -> None:
        """Stops the job and waits for its end."""
        self._jobs.stop(self._job)
        end = time.monotonic() + self._patience.stop
        while time.monotonic() < end:
            details = self._jobs.find(self._job)
            if details is None or details.status.is_terminal():
                return
            time.sleep(self._patience.reconnect)


def task_name(run: str, stage: str, arguments: dict[str, Any]) -> str:
    """Name of a stage's jobs without the attempt's number; the same for every launcher."""
    number = arguments.get("iteration", arguments.get("start"))
    parts = [run_name(run), stage, arguments.get("name")]
    parts += [] if number is None else [f"{number:04d}"]
    return shortened("-".join(filter(None, parts)), ID_LIMIT)


def _client(dashboard: Dashboard, seconds: float) -> "JobSubmissionClient":
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        """Ray's client has no timeout."""

        def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> Any:
            return super()._do_request(method, endpoint, timeout=seconds, **kwargs)

    return Client(dashboard.url, headers={"Authorization": f"Bearer {dashboard.token}"})


def _outcome(job: str, details: Any, log: Log) -> dict[str, Any]:
    """The result of a finished job, or its error."""
    verdict = log.verdict or {}
    if details.status == "SUCCEEDED" and "result" in verdict:
        return verdict["result"]
    if "kind" in verdict:
        raise ERRORS[verdict["kind"]](verdict.get("message", ""))
    if details.status == "STOPPED":
        raise JobFailed(f"job {job} was stopped (`vagen cluster stop`, Ray's dashboard)")
    said = (details.message or "").partition(", last available logs")[0].strip()
    lines = "\n".join(f"  | {line}" for line in log.tail)
    raise Lost(f"job {job} died without a verdict: {said}; last lines of its log:\n{lines}")
