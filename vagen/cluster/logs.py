"""The log of a RayJob's driver, line by line, as its submitter's pods print it.

KubeRay's Kubernetes Job starts another submitter pod if one fails; that one follows the same Ray
job and prints its log from the beginning (`BuildJobSubmitCommand`, common/job.go, v1.6). Within a
pod, a broken connection is resumed by time stamps, whose `sinceTime` counts whole seconds.
"""

import re
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from urllib3.exceptions import HTTPError

from vagen.cluster.errors import ApiError
from vagen.cluster.kube import PODS, TRANSIENT, Kube, Object
from vagen.cluster.names import JOB_NAME
from vagen.cluster.watching import lines

OnLog = Callable[[str], Any]
TAIL = 40
"""Lines kept for an error message."""
SILENCE = 60.0
"""Seconds without a line after which a connection is made anew: it may be dead."""
_STAMP = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?(.*)", re.S
)


class Cursor:
    """How far a container's log has been read: the time of its last line, and how many had it."""

    def __init__(self) -> None:
        self.since = ""
        """For `sinceTime`: whole seconds, so that a part of the lines comes again."""
        self._last = ("", 0)
        self._count = 0
        self._to_skip = 0

    def rewind(self) -> None:
        """The log is read again from `since`."""
        self._to_skip = self._count

    def take(self, line: bytes) -> str | None:
        """The text of a line with its time stamp; None if it was taken before."""
        found = _STAMP.match(line)
        if not found:
            return line.decode(errors="replace")
        second, fraction, zone, text = found.groups()
        stamp = (second.decode(), int((fraction or b"0").ljust(9, b"0")))
        if stamp < self._last:
            return None
        if stamp == self._last:
            if self._to_skip:
                self._to_skip -= 1
                return None
            self._count += 1
        else:
            self._last, self._count, self._to_skip = stamp, 1, 0
            self.since = second.decode() + zone.decode()
        return text.decode(errors="replace")


class LogFollower(threading.Thread):
    """Follows the submitter pods of a RayJob, in a thread of its own, and hands over each line.

    Attributes:
        tail: The last lines.
        error: What ended the thread, other than the log's end.
    """

    def __init__(self, kube: Kube, job: str, on_log: OnLog) -> None:
        super().__init__(name=f"log of {job}", daemon=True)
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.error: Exception | None = None
        self._kube = kube
        self._job = job
        self._on_log = on_log
        self._silenced = threading.Event()
        self._last_round = threading.Event()
        self._printed: Counter[int] = Counter()

    def run(self) -> None:
        """Pod after pod, until `finish`."""
        done: set[str] = set()
        try:
            while not self._silenced.is_set():
                last = self._last_round.is_set()
                pods = [pod for pod in self.pods() if pod["metadata"]["uid"] not in done]
                for pod in pods:
                    done.add(pod["metadata"]["uid"])
                    self._read_pod(pod)
                if last:
                    return
                self._last_round.wait(min(1.0, self._kube.pace.window))
        except Exception as error:  # given to the thread that waits: nothing is lost
            self.error = error

    def pods(self) -> list[Object]:
        """The submitter's pods whose container has begun, in the order of their making."""
        pods = self._kube.list(PODS, f"{JOB_NAME}={self._job}").items
        begun = [pod for pod in pods if pod["status"].get("phase") != "Pending"]
        return sorted(begun, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def finish(self, seconds: float) -> None:
        """Reads what is left, for so long at most; hands over nothing afterwards."""
        self._last_round.set()
        self.join(seconds)
        self._silenced.set()

    def _read_pod(self, pod: Object) -> None:
        """One container's log from its beginning to its end, across broken connections."""
        cursor = Cursor()
        # A line that an earlier pod has printed is not new: as many times as it was printed.
        known = Counter(self._printed)
        name = pod["metadata"]["name"]
        container = pod["spec"]["containers"][0]["name"]
        while not self._silenced.is_set():
            ended = has_ended(pod)
            cursor.rewind()
            query = {"container": container, "timestamps": "true", "sinceTime": cursor.since}
            if not ended:
                query["follow"] = "true"
            whole = self._read(name, query, cursor, known)
            if ended and whole:
                return
            found = self._kube.get(PODS, name)
            if found is None or found["metadata"]["uid"] != pod["metadata"]["uid"]:
                return
            pod = found

    def _read(self, name: str, query: dict[str, str], cursor: Cursor, known: Counter[int]) -> bool:
        """Reads on from the cursor; whether the connection held."""
        path = self._kube.path(PODS, name) + "/log"
        try:
            with self._kube.stream(path, query, SILENCE) as response:
                for line in lines(response, to_end="follow" not in query):
                    self._emit(cursor.take(line), known)
                    if self._silenced.is_set():
                        return False
            return True
        except HTTPError:
            pass
        except ApiError as error:
            # 400: the container has not begun; 404: its pod is gone, which the caller sees.
            if error.status not in (400, 404, *TRANSIENT):
                raise
        self._silenced.wait(self._kube.pace.first_pause)
        return False

    def _emit(self, text: str | None, known: Counter[int]) -> None:
        if text is None or self._silenced.is_set():
            return
        mark = hash(text)
        if known[mark] > 0:
            known[mark] -= 1
            return
        self._printed[mark] += 1
        self.tail.append(text)
        self._on_log(text)


def has_ended(pod: Object) -> bool:
    """Whether a pod's first container writes no more."""
    status = pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return True
    first = pod["spec"]["containers"][0]["name"]
    return any(
        container["name"] == first and "terminated" in container.get("state", {})
        for container in status.get("containerStatuses", [])
    )
