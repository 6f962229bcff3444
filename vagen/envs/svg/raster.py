"""Renders documents in a worker process with limits on time and memory."""

import atexit
import functools
import importlib.util
import io
import os
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vagen.envs.svg.safety import safe_document

LENGTH = struct.Struct(">I")
"""Header of each message to and from the worker."""
MEMORY_BYTES = 1 << 30
"""Address space limit of the worker."""
CPU_SECONDS = 2
"""CPU time limit per document."""
WALL_SECONDS = 10.0
"""Wall-clock limit per document."""
START_SECONDS = 60.0
"""Start-up timeout of a worker on a busy machine."""
KEPT_PICTURES = 256
"""Number of cached images: an episode shows its target in every turn."""


class RasterError(ValueError):
    """A document could not be rendered within the limits."""


class Rasteriser:
    """Renders checked documents; replaces a worker that dies or is too slow.

    Thread-safe (one document at a time) and fork-safe (the child starts its own worker).
    """

    def __init__(
        self,
        side: int,
        *,
        memory_bytes: int = MEMORY_BYTES,
        cpu_seconds: int = CPU_SECONDS,
        wall_seconds: float = WALL_SECONDS,
    ) -> None:
        """Creates a rasteriser; its worker starts with the first document.

        Args:
            side: Side of the images in pixels.
            memory_bytes: Address space limit of the worker.
            cpu_seconds: CPU time limit per document.
            wall_seconds: Wall-clock limit per document.

        Raises:
            ImportError: resvg_py is not installed.
        """
        if importlib.util.find_spec("resvg_py") is None:
            raise ImportError("the SVG environment draws with resvg: pip install 'vagen[envs]'")
        self.side = side
        self.restarts = 0
        """Number of replaced workers."""
        self._limits = (memory_bytes, cpu_seconds, wall_seconds)
        self._worker: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._kept = functools.lru_cache(KEPT_PICTURES)(self._rendered)
        atexit.register(self.close)

    def draw(self, text: str) -> NDArray[np.uint8]:
        """Renders an SVG document.

        Returns:
            uint8 [side, side, 3] on white, read-only.

        Raises:
            UnsafeSVG: The document is rejected.
            RasterError: It could not be rendered within the limits.
        """
        return self._kept(safe_document(text, self.side).encode())

    def _rendered(self, document: bytes) -> NDArray[np.uint8]:
        with self._lock:
            png = self._ask(document)
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.size != (self.side, self.side):
                raise RasterError(f"the worker drew {image.size} instead of {self.side} pixels")
            picture = np.asarray(image.convert("RGB"))
        picture.flags.writeable = False
        return picture

    def close(self) -> None:
        """Ends the worker; a later document starts another."""
        if self._worker is not None and self._owner == os.getpid():
            self._worker.kill()
            self._worker.communicate()
        self._worker = None

    def _ask(self, document: bytes) -> bytes:
        try:
            worker = self._running()
            assert worker.stdin is not None
            deadline = time.monotonic() + self._limits[2]
            worker.stdin.write(LENGTH.pack(len(document)) + document)
            worker.stdin.flush()
            status, body = _read_answer(worker, deadline)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            self.restarts += 1
            reason = "was too slow" if isinstance(error, TimeoutError) else "exceeded its limits"
            raise RasterError(f"drawing the document {reason}") from None
        if status != b"1":
            raise RasterError(f"not drawable: {body.decode(errors='replace')}")
        return body

    def _running(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # after a fork the worker belongs to the parent
            self._worker = None
        if self._worker is None or self._worker.poll() is not None:
            memory, seconds, _ = self._limits
            self._owner = os.getpid()
            self._worker = subprocess.Popen(
                [
                    *(sys.executable, "-s", str(Path(__file__).with_name("worker.py"))),
                    *map(str, (self.side, memory, seconds)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            _read_answer(self._worker, time.monotonic() + START_SECONDS)
        return self._worker


@functools.cache
def rasteriser(side: int) -> Rasteriser:
    """The rasteriser shared by all environments of a process."""
    return Rasteriser(side)


def _read_answer(worker: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Status and body of the worker's next answer."""
    assert worker.stdout is not None
    header = _read(worker.stdout.fileno(), 1 + LENGTH.size, deadline)
    return header[:1], _read(worker.stdout.fileno(), LENGTH.unpack(header[1:])[0], deadline)


def _read(descriptor: int, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes of a pipe."""
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError
        chunk = os.read(descriptor, count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
