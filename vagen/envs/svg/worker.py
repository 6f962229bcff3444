"""The rasterising process: reads documents from stdin, writes PNGs to stdout.

Runs as a file without importing VAGEN: `python worker.py SIDE MEMORY_BYTES CPU_SECONDS`. A message
is a 4-byte length (big-endian) and the content. A reply starts with a status byte (`1` for a PNG,
`0` for an error text); an empty first reply signals that the worker is ready. The memory limit is
permanent, the CPU time limit is reset for each document; the kernel kills a process that exceeds
one. The process cannot open files.
"""

import resource
import struct
import sys
from typing import BinaryIO

import resvg_py

LENGTH = struct.Struct(">I")


def main() -> None:
    """Serves until stdin ends."""
    side, memory, seconds = (int(argument) for argument in sys.argv[1:4])
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    render("<svg xmlns='http://www.w3.org/2000/svg'/>", side)  # triggers lazy loading
    if sys.platform != "darwin":  # its kernel rejects this limit; wall-clock still applies
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    answer(answers, b"1", b"")
    while document := read(requests):
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime) + 1
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds, hard))
        try:
            status, body = b"1", render(document.decode(), side)
        except Exception as error:
            status, body = b"0", str(error)[:200].encode()
        answer(answers, status, body)


def render(document: str, side: int) -> bytes:
    """Renders a document as a PNG of `side` x `side` pixels on white."""
    return resvg_py.svg_to_bytes(
        svg_string=document, width=side, height=side, background="white", skip_system_fonts=True
    )


def answer(stream: BinaryIO, status: bytes, body: bytes) -> None:
    """Writes a reply."""
    stream.write(status + LENGTH.pack(len(body)) + body)
    stream.flush()


def read(stream: BinaryIO) -> bytes:
    """The next message; empty at the end."""
    header = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""


if __name__ == "__main__":
    main()
