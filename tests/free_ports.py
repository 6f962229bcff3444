"""Ports for servers that tests start."""

import socket


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
