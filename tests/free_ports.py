"""Ports for servers that tests start."""

import random
import socket
from contextlib import suppress

# Above the ports of Ray's workers and below those that systems give to outgoing connections: no
# other program takes them while a server is down to be started again.
_RANGE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    ports: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError("no free port")
