"""A port of the cluster on this machine, through `kubectl port-forward`."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from vagen.cluster.errors import ClusterError
from vagen.cluster.kube import Kube

_FORWARDING = re.compile(r"Forwarding from (127\.0\.0\.1:\d+)")


@contextmanager
def forwarded(kube: Kube, target: str, port: int, context: str | None) -> Iterator[str]:
    """The address on this machine of a pod's or service's port, such as `http://127.0.0.1:40123`.

    Args:
        kube: The API server, with the namespace.
        target: `pod/NAME` or `service/NAME`.
        port: Its port.
        context: Context of the kubeconfig; None for the current one.

    Raises:
        ClusterError: There is no `kubectl`, or it is rejected.
    """
    words = ["kubectl", "--namespace", kube.namespace, *(["--context", context] if context else [])]
    words += ["port-forward", target, f":{port}"]
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise ClusterError(f"kubectl is not installed: it forwards a port of {target}") from error
    with process:
        try:
            assert process.stdout is not None
            found = _FORWARDING.match(process.stdout.readline())
            if found is None:
                raise ClusterError(f"kubectl cannot forward port {port} of {target}")
            yield f"http://{found[1]}"
        finally:
            process.terminate()
