"""What a probe pod executes: `listen 8265 6379 ...`, or connections to make, as JSON."""

import json
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

SECONDS = 4.0


def connected(where: list) -> bool:
    """Whether a connection is taken and answered."""
    try:
        with socket.create_connection((where[0], where[1]), SECONDS) as link:
            link.settimeout(SECONDS)
            return link.recv(1) == b"!"
    except OSError:
        return False


def listen(port: int) -> None:
    """Answers whoever connects."""
    with socket.create_server(("", port)) as server:
        while True:
            link, _ = server.accept()
            with link:
                link.sendall(b"!")


if sys.argv[1] == "listen":
    threads = [threading.Thread(target=listen, args=(int(port),)) for port in sys.argv[2:]]
    for thread in threads:
        thread.start()
else:
    with ThreadPoolExecutor(16) as pool:
        print(json.dumps(list(pool.map(connected, json.loads(sys.argv[1])))))
