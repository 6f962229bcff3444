"""Blanks what CUDA libraries hold for other GPUs than Hopper, so that they compress well.

A fat binary is a list of entries: machine code for one architecture, or PTX. The driver takes the
entry that fits its GPU best and reads no other. Entries keep their headers and places; the payload
of those that are not for sm_90 becomes zeros.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

ARCHITECTURE = 90
SECTIONS = (b".nv_fatbin", b"__nv_fatbin")
MAGIC, MACHINE_CODE = 0xBA55ED50, 2


def prune(path: Path) -> int:
    """Blanks entries of a library, in place; gives the number of bytes that are zeros now."""
    blanked = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as library:
        for start, end in _sections(library):
            for kind, architecture, payload, size in _entries(library, start, end):
                if kind != MACHINE_CODE or architecture != ARCHITECTURE:
                    library[payload : payload + size] = bytes(size)
                    blanked += size
    return blanked


def _sections(library: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Beginning and end of the sections of a 64-bit ELF file that hold fat binaries."""
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names = struct.unpack_from("<HHH", library, 58)
    headers = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        text = headers[names][4] + name
        if library[text : library.find(b"\0", text)] in SECTIONS:
            yield offset, offset + length


def _entries(library: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Kind, architecture, place of the payload and its size of every entry in a section."""
    while at < end - 16:
        magic, _, header, size = struct.unpack_from("<IHHQ", library, at)
        if magic != MAGIC:  # padding between two fat binaries
            at += 8
            continue
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, header, size = struct.unpack_from("<HHIQ", library, entry)
            if not header:
                break
            (architecture,) = struct.unpack_from("<I", library, entry + 28)
            yield kind, architecture, entry + header, size
            entry += header + size
