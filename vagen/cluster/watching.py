"""Watches one object: yields every change once, across windows, lost connections and expired
versions.

Source: Kubernetes API concepts, "Efficient detection of changes": a watch resumes from the last
resource version, which bookmarks advance; 410 Gone requires a new list.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

from urllib3.exceptions import HTTPError

from vagen.cluster.errors import ApiError
from vagen.cluster.kube import TRANSIENT, Kube, Object, Resource

SLACK = 5.0
"""Extra seconds that a server may take to end a watch."""


def follow(kube: Kube, resource: Resource, name: str) -> Iterator[Object | None]:
    """Yields states of an object, or None while it does not exist.

    Yields at every change and at least once per `pace.window`, so that the caller can check other
    objects. Never ends by itself.

    Raises:
        ApiError: The server rejects the watch, or does not respond for `pace.retry`.
    """
    version = ""
    state: Object | None = None
    failed_since: float | None = None
    while True:
        if not version:
            listing = kube.list(resource, field_selector=f"metadata.name={name}")
            version = listing.resource_version
            state = listing.items[0] if listing.items else None
            yield state
        begun = time.monotonic()
        try:
            for kind, item in _window(kube, resource, name, version):
                version = item["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    state = None if kind == "DELETED" else item
                    yield state
            failed_since = None
        except (HTTPError, ApiError) as error:
            if isinstance(error, ApiError):
                if error.status == 410:
                    version = ""
                elif error.status not in TRANSIENT:
                    raise
            failed_since = failed_since or begun
            if time.monotonic() - failed_since > kube.pace.retry:
                raise
            # Pause even if a server drops every watch at once.
            time.sleep(max(0.0, kube.pace.first_pause - (time.monotonic() - begun)))
        yield state


def _window(
    kube: Kube, resource: Resource, name: str, version: str
) -> Iterator[tuple[str, Object]]:
    """The events of one watch."""
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(max(1, round(kube.pace.window))),
        "fieldSelector": f"metadata.name={name}",
    }
    timeout = kube.pace.window + SLACK
    with kube.stream(kube.path(resource), query, timeout) as response:
        for line in _lines(response):
            event = json.loads(line)
            item = event["object"]
            if event["type"] == "ERROR":
                raise ApiError(
                    f"watch of {resource.full_name} {name}: {item.get('message')}",
                    int(item.get("code", 500)),
                    str(item.get("reason", "")),
                )
            yield event["type"], item


def _lines(response: Any) -> Iterator[bytes]:
    """Whole lines of a stream, without an incomplete last one."""
    rest = b""
    for chunk in response.stream(None, decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line)
