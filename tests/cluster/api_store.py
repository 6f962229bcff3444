"""Objects of the tests' API server: versions, history, deletion, garbage collection."""

import copy
import itertools
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from api_schemas import faults, set_defaults

Object = dict[str, Any]
KINDS = {
    ("", "v1", "pods"): "Pod",
    ("", "v1", "events"): "Event",
    ("", "v1", "configmaps"): "ConfigMap",
    ("", "v1", "secrets"): "Secret",
    ("", "v1", "nodes"): "Node",
    ("resource.k8s.io", "v1", "resourceclaimtemplates"): "ResourceClaimTemplate",
    ("kueue.x-k8s.io", "v1beta2", "localqueues"): "LocalQueue",
    ("", "v1", "services"): "Service",
    ("apps", "v1", "deployments"): "Deployment",
    ("serving.kserve.io", "v1beta1", "inferenceservices"): "InferenceService",
    ("ray.io", "v1", "rayclusters"): "RayCluster",
}
PLURALS = {kind: (group, plural) for (group, _, plural), kind in KINDS.items()}
FOREGROUND = "foregroundDeletion"
News = tuple[list[tuple[str, Object]], int]
"""Changes, and the version up to which they are told."""


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(
        self, status: int, reason: str, message: str, name: str = "", plain: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.name, self.plain = name, plain

    def body(self) -> Any:
        if self.plain:
            return self.message + "\n"
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": {"name": self.name} if self.name else {},
            "code": self.status,
        }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """All objects of one namespace, and the history of their changes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in KINDS.values()}
        self.history: list[tuple[int, str, str, Object]] = []
        """Version, kind, change, object."""
        self.version = 100
        self.oldest = 100
        """Versions before this one have expired."""
        self.closed = False
        self.missing: set[str] = set()
        """Groups whose definitions are not installed."""
        self.page_limit = 500
        self.quotas: dict[str, int] = {}
        """How many objects of a kind there may be."""
        self._changed = threading.Condition(threading.RLock())
        self._pages: dict[str, list[Object]] = {}
        self._counter = itertools.count()

    @property
    def lock(self) -> threading.Condition:
        return self._changed

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def kind(self, group: str, version: str, plural: str) -> str:
        kind = KINDS.get((group, version, plural))
        if kind is None or group in self.missing:
            raise Refusal(404, "", "404 page not found", plain=True)
        return kind

    def knows(self, path: str) -> bool:
        """Whether a path is the root of a group with kinds."""
        roots = {f"/apis/{group}/{version}" for group, version, _ in KINDS if group}
        return path in roots and path.split("/")[2] not in self.missing

    def get(self, kind: str, name: str) -> Object:
        with self._changed:
            return copy.deepcopy(self._find(kind, name))

    def all(self, kind: str, **labels: str) -> list[Object]:
        """For tests and the operator: objects whose labels have these values."""
        with self._changed:
            return [
                copy.deepcopy(item)
                for item in self.objects[kind].values()
                if labels.items() <= item["metadata"].get("labels", {}).items()
            ]

    def list(self, kind: str, query: dict[str, str]) -> Object:
        with self._changed:
            token = query.get("continue", "")
            if token:
                if token not in self._pages:
                    raise Refusal(410, "Expired", "The provided continue parameter is too old")
                items = self._pages.pop(token)
            else:
                items = [
                    copy.deepcopy(item)
                    for item in self.objects[kind].values()
                    if _selected(item, query)
                ]
            limit = min(int(query.get("limit", "0")) or self.page_limit, self.page_limit)
            metadata = {"resourceVersion": str(self.version)}
            if len(items) > limit:
                metadata["continue"] = f"page-{next(self._counter)}"
                self._pages[metadata["continue"]] = items[limit:]
            return {"kind": f"{kind}List", "metadata": metadata, "items": items[:limit]}

    def create(self, kind: str, body: Object, strict: bool = False) -> Object:
        with self._changed:
            body = copy.deepcopy(body)
            metadata = body.setdefault("metadata", {})
            if "generateName" in metadata and not metadata.get("name"):
                metadata["name"] = f"{metadata['generateName']}{next(self._counter):05d}"
            name = metadata["name"]
            if name in self.objects[kind]:
                message = f'{PLURALS[kind][1]} "{name}" already exists'
                raise Refusal(409, "AlreadyExists", message, name)
            self._check_quota(kind, name)
            body.setdefault("kind", kind)
            body.pop("status", None) if kind == "RayCluster" else None
            self._admit(body, strict)
            metadata.update(
                uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1, namespace="vagen"
            )
            return copy.deepcopy(self._commit("ADDED", body))

    def _check_quota(self, kind: str, name: str) -> None:
        """In the words of Kubernetes 1.33."""
        limit = self.quotas.get(kind)
        if limit is None or len(self.objects[kind]) < limit:
            return
        group, plural = PLURALS[kind]
        what = f"count/{plural}.{group}="
        message = (
            f'{plural}.{group} "{name}" is forbidden: exceeded quota: vagen, requested: {what}1, '
            f"used: {what}{limit}, limited: {what}{limit}"
        )
        raise Refusal(403, "Forbidden", message, name)

    def update(
        self, kind: str, name: str, body: Object, sub: str = "", merge: bool = False
    ) -> Object:
        with self._changed:
            old = self._find(kind, name)
            new = _merge(copy.deepcopy(old), body) if merge else copy.deepcopy(body)
            version = body.get("metadata", {}).get("resourceVersion")
            if version and version != old["metadata"]["resourceVersion"]:
                raise Refusal(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {kind} "{name}": the object has been '
                    "modified; please apply your changes to the latest version and try again",
                    name,
                )
            if sub == "status":
                new = {**copy.deepcopy(old), "status": new.get("status", {})}
            elif kind == "RayCluster":
                new["status"] = copy.deepcopy(old.get("status", {}))
            self._admit(new, strict=False)
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"]["generation"] + 1
            if new == old:
                return copy.deepcopy(old)
            metadata = new["metadata"]
            if (
                metadata.get("deletionTimestamp")
                and not metadata.get("finalizers")
                and not metadata.get("deletionGracePeriodSeconds")
            ):
                return self._remove(kind, name)
            return copy.deepcopy(self._commit("MODIFIED", new))

    def delete(self, kind: str, name: str, options: Object) -> Object:
        with self._changed:
            item = self._find(kind, name)
            metadata = item["metadata"]
            wanted = options.get("preconditions", {})
            for key, value in wanted.items():
                if metadata[key] != value:
                    message = f"Precondition failed: {key} in precondition: {value}"
                    raise Refusal(409, "Conflict", message, name)
            finalizers = list(metadata.get("finalizers", []))
            if options.get("propagationPolicy") == "Foreground" and FOREGROUND not in finalizers:
                finalizers.append(FOREGROUND)
            graceful = kind == "Pod" and options.get("gracePeriodSeconds") != 0
            if not finalizers and not graceful:
                return self._remove(kind, name)
            if metadata.get("deletionTimestamp"):
                return copy.deepcopy(item)
            item = copy.deepcopy(item)
            item["metadata"].update(deletionTimestamp=now(), finalizers=finalizers)
            if graceful:
                item["metadata"]["deletionGracePeriodSeconds"] = 30
            return copy.deepcopy(self._commit("MODIFIED", item))

    def collect_garbage(self) -> None:
        """Deletes what has lost its owners; ends foreground deletions whose dependents are gone."""
        with self._changed:
            every = [item for items in self.objects.values() for item in list(items.values())]
            uids = {item["metadata"]["uid"]: item for item in every}
            blocking: set[str] = set()
            for item in every:
                owners = item["metadata"].get("ownerReferences", [])
                if not owners:
                    continue
                left = [uids[owner["uid"]] for owner in owners if owner["uid"] in uids]
                dying = [one for one in left if FOREGROUND in one["metadata"].get("finalizers", [])]
                if (not left or dying) and not item["metadata"].get("deletionTimestamp"):
                    policy = "Foreground" if dying else "Background"
                    self.delete(
                        item["kind"], item["metadata"]["name"], {"propagationPolicy": policy}
                    )
                blocking |= {
                    owner["uid"] for owner in owners if owner.get("blockOwnerDeletion")
                } & set(uids)
            for item in every:
                metadata = (
                    self.objects[item["kind"]].get(item["metadata"]["name"], {}).get("metadata", {})
                )
                if FOREGROUND in metadata.get("finalizers", []) and metadata["uid"] not in blocking:
                    rest = [one for one in metadata["finalizers"] if one != FOREGROUND]
                    self.update(
                        item["kind"],
                        metadata["name"],
                        {"metadata": {"finalizers": rest}},
                        merge=True,
                    )

    def expire(self) -> None:
        """Forgets the history: every version that a client holds has expired."""
        with self._changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            self._changed.notify_all()

    def events_after(
        self, kind: str, version: int, query: dict[str, str], seconds: float
    ) -> News | None:
        """What happened after a version, and up to which; waits; None if that has expired."""
        with self._changed:
            end = time.monotonic() + seconds
            while True:
                if version < self.oldest:
                    return None
                # What comes while the last wait runs out belongs to the next call.
                until = self.version
                found = [
                    (change, copy.deepcopy(item))
                    for at, of, change, item in self.history
                    if at > version and of == kind and _selected(item, query)
                ]
                if found or self.closed or not self._changed.wait(max(0, end - time.monotonic())):
                    return found, until

    def _admit(self, body: Object, strict: bool) -> None:
        if body["kind"] != "RayCluster":
            return
        set_defaults(body)
        wrong = faults(body)
        unknown = [one for one in wrong if "unexpected" in one]
        if unknown and strict:
            raise Refusal(400, "BadRequest", f"strict decoding error: unknown field: {unknown}")
        if set(wrong) - set(unknown):
            raise Refusal(422, "Invalid", f"{body['kind']} is invalid: {wrong}")

    def _find(self, kind: str, name: str) -> Object:
        try:
            return self.objects[kind][name]
        except KeyError:
            group, plural = PLURALS[kind]
            full = f"{plural}.{group}" if group else plural
            raise Refusal(404, "NotFound", f'{full} "{name}" not found', name) from None

    def _commit(self, change: str, item: Object) -> Object:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        if change != "DELETED":
            self.objects[item["kind"]][item["metadata"]["name"]] = item
        self.history.append((self.version, item["kind"], change, copy.deepcopy(item)))
        self._changed.notify_all()
        return item

    def _remove(self, kind: str, name: str) -> Object:
        item = self.objects[kind].pop(name)
        return copy.deepcopy(self._commit("DELETED", item))


def _merge(target: Object, patch: Object) -> Object:
    """JSON merge patch, RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            target[key] = _merge(target.get(key) or {}, value)
        else:
            target[key] = value
    return target


def _selected(item: Object, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels", {})
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        node: Any = item
        for key in path.split("."):
            node = node.get(key, "") if isinstance(node, dict) else ""
        if node != value:
            return False
    return True
