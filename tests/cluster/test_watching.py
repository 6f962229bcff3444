"""Following one object across windows, drops and expired versions."""

import itertools
import time
from dataclasses import replace

import pytest
from apiserver import Fault
from cluster_place import QUICK

from vagen.cluster import ApiError
from vagen.cluster.kube import CONFIG_MAPS, follow

pytestmark = pytest.mark.slow


def make(kube, value: int) -> None:
    kube.create(
        CONFIG_MAPS, {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"value": value}}
    )


def change(kube, value: int) -> None:
    kube.patch(CONFIG_MAPS, "a", {"data": {"value": value}})


def value_of(state) -> int | None:
    return None if state is None else state["data"]["value"]


def read_until(states, value: int | None) -> list[int | None]:
    """Values in their order, without repetitions, until one has come."""
    seen = []
    for state in states:
        if not seen or seen[-1] != value_of(state):
            seen.append(value_of(state))
        if seen[-1] == value:
            return seen
    raise AssertionError


def test_every_change_is_seen_and_a_deletion(namespace, kube) -> None:
    states = follow(kube, CONFIG_MAPS, "a")
    assert next(states) is None
    make(kube, 1)
    change(kube, 2)
    change(kube, 3)
    assert read_until(states, 3) == [1, 2, 3]
    kube.delete(CONFIG_MAPS, "a")
    assert read_until(states, None)[-1] is None


def test_nothing_new_is_said_again_once_in_a_window(namespace, kube) -> None:
    make(kube, 1)
    states = follow(kube, CONFIG_MAPS, "a")
    begun = time.monotonic()
    assert [value_of(state) for state in itertools.islice(states, 2)] == [1, 1]
    assert time.monotonic() - begun < 3


def test_bookmarks_carry_a_watch_past_what_has_expired(namespace, kube) -> None:
    make(kube, 1)
    states = follow(kube, CONFIG_MAPS, "a")
    next(states)
    for number in range(5):
        kube.create(CONFIG_MAPS, {"kind": "ConfigMap", "metadata": {"name": f"other{number}"}})
    next(states)  # a window ends with a bookmark
    requests = len(namespace.server.requests)
    namespace.store.oldest = namespace.store.version
    change(kube, 2)
    assert read_until(states, 2)[-1] == 2
    assert not any("limit" in one for one in namespace.server.requests[requests:])


def test_an_expired_version_is_listed_anew(namespace, kube) -> None:
    make(kube, 1)
    states = follow(kube, CONFIG_MAPS, "a")
    next(states)
    change(kube, 2)
    namespace.store.expire()
    assert read_until(states, 2)[-1] == 2


@pytest.mark.parametrize("action", ["cut", "drop", "429", "500"])
def test_a_broken_watch_is_taken_up_again(namespace, kube, action) -> None:
    make(kube, 1)
    states = follow(kube, CONFIG_MAPS, "a")
    next(states)
    namespace.server.faults.append(Fault("watch=true", action, times=3))
    change(kube, 2)
    assert read_until(states, 2)[-1] == 2


def test_a_server_that_refuses_every_watch_is_given_up(namespace) -> None:
    kube = namespace.connect(replace(QUICK, retry=0.3))
    make(kube, 1)
    namespace.server.faults.append(Fault("watch=true", "503", times=10**6))
    with pytest.raises(ApiError, match="503"):
        for _ in follow(kube, CONFIG_MAPS, "a"):
            pass
    asked = sum("watch=true" in one for one in namespace.server.requests)
    assert 2 <= asked <= 40


def test_a_missing_right_ends_it_at_once(namespace, kube) -> None:
    namespace.server.denied = {("watch", "configmaps")}
    states = follow(kube, CONFIG_MAPS, "a")
    next(states)
    with pytest.raises(ApiError, match="may not watch configmaps"):
        next(states)
