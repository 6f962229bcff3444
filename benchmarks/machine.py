"""What the figures of a benchmark were measured on."""

import os
import platform
from pathlib import Path
from typing import Any


def describe_machine(**more: Any) -> dict[str, Any]:
    """Processor, cores, load, Python and system; `more` stands before the system's name."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        **more,
        "system": platform.platform(),
    }
