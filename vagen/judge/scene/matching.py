"""Compares what is claimed with what is around."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from vagen.envs.base import State
from vagen.judge.scene.language import Claim
from vagen.judge.scene.lexicon import TARGET

SECTOR = 22.5
"""Half of an eighth of the circle, in degrees."""
LEEWAY = 12.5
"""Degrees by which a bearing may lie outside the direction that is named."""
METRES, SHARE = 0.5, 0.2
"""A distance may be wrong by so many metres, or by this share of itself if that is more."""

OUT_OF_PICTURE = 80.0
"""Bearing, in degrees, from which on a thing can be spoken of without being shown."""

TARGET_WEIGHT = 0.7
"""Of the target in a score; the other things have the rest."""
PLACED, MEASURED, NOTICED = 0.6, 0.3, 0.1
"""Credit of a right direction without a distance, of a right distance without a direction, and of
naming what is in view; direction and distance together have 1."""


class Entry(NamedTuple):
    """A thing of a state."""

    kind: str
    colour: str | None
    bearing: float
    """Degrees to the right of where the agent looks."""
    metres: float
    visible: bool


class Scene(NamedTuple):
    """What a right description would speak of."""

    target: Entry
    objects: tuple[Entry, ...]
    """The nearest other things in view."""
    others: tuple[Entry, ...]
    """What else is in view."""
    hidden: tuple[Entry, ...] = ()
    """Things that are not in view."""


def scene_of(state: State) -> Scene:
    """The truth of a state of Navigation."""
    return Scene(
        _entry(state["target"]),
        tuple(map(_entry, state["objects"])),
        tuple(map(_entry, state["others"])),
        tuple(map(_entry, state["hidden"])),
    )


def _entry(entry: dict[str, Any]) -> Entry:
    return Entry(
        entry["type"], entry["colour"], entry["bearing"], entry["distance"], entry["visible"]
    )


def refusal_of(claims: Sequence[Claim], scene: Scene) -> str | None:
    """Why claims are worth nothing in a scene, if they are.

    Returns:
        `contradiction` if more things of a name are put somewhere than there are,
        `sight` if something is said to be in view that is not - by itself, or by placing it where
        the picture would show it - or the other way round, or if a thing that is not in view is put
        where it is not; None otherwise.
    """
    if any(_are_too_many(claim, claims, scene) for claim in claims):
        return "contradiction"
    shown = [e for e in (scene.target, *scene.objects, *scene.others) if e.visible]
    for claim in claims:
        in_view = any(_names(claim, entry) for entry in shown) or (
            claim.kind == TARGET and scene.target.visible
        )
        if claim.in_view is not None and claim.in_view != in_view:
            return "sight"
        if in_view or claim.in_view is False or _names_target(claim, scene):
            continue
        is_aside = claim.bearing is not None and abs(claim.bearing) >= OUT_OF_PICTURE
        if not (is_aside and any(_fit(claim, entry) for entry in scene.hidden)):
            return "sight"
    return None


def score_scene(claims: Sequence[Claim], scene: Scene, *, all_required: bool) -> float:
    """How well claims describe a scene.

    The target has `TARGET_WEIGHT` of the score, the F1 of the claims about other things the rest;
    without such claims, where they are not required, the target has all of it. A claim with a
    wrong part earns nothing. Right claims about things in view beyond the nearest five, and claims
    about things beside or behind the agent, are neither asked for nor held against the text.

    Returns:
        A score in [0, 1].
    """
    of_target = [claim for claim in claims if _names_target(claim, scene)]
    target_credit, used = 0.0, -1
    for index, claim in enumerate(claims):
        credit = credit_of(claim, scene.target) if _names_target(claim, scene) else 0.0
        if credit > target_credit:
            target_credit, used = credit, index
    if used < 0 and of_target and not any(_names(of_target[0], e) for e in scene.objects):
        used = claims.index(of_target[0])
    rest = [claim for index, claim in enumerate(claims) if index != used]
    found, expected, stated = _match(rest, scene)
    if not all_required:
        expected = stated
    if not expected + stated:
        return target_credit
    return TARGET_WEIGHT * target_credit + (1 - TARGET_WEIGHT) * 2 * found / (expected + stated)


def _match(claims: Sequence[Claim], scene: Scene) -> tuple[float, int, int]:
    """Credit of the claims about other things, how many are expected, how many claims count."""
    left = list(scene.objects)
    beyond = list(scene.others)
    found, stated = 0.0, 0
    for claim in claims:
        if claim.in_view is False:  # there is no thing in view that it is about
            continue
        best = max(left, key=lambda entry: _fit(claim, entry), default=None)
        if best is not None and _fit(claim, best) > 0:
            found += credit_of(claim, best)
            left.remove(best)
            stated += 1
            continue
        further = next((entry for entry in beyond if _fit(claim, entry) > 0), None)
        if further is not None:
            beyond.remove(further)
        elif any(_names(claim, entry) for entry in (*scene.objects, *scene.others, scene.target)):
            stated += 1  # a thing in view is put where it is not
    return found, len(scene.objects), stated


def _fit(claim: Claim, entry: Entry) -> float:
    return credit_of(claim, entry) if _names(claim, entry) else 0.0


def _names(claim: Claim, entry: Entry) -> bool:
    """Whether a claim can be about a thing: by type and, if both say one, colour."""
    if claim.colour is not None and entry.colour is not None and claim.colour != entry.colour:
        return False
    return claim.kind == entry.kind or entry.kind.endswith(" " + claim.kind)


def _names_target(claim: Claim, scene: Scene) -> bool:
    """Whether a claim can be about the target."""
    return claim.kind == TARGET or _names(claim, scene.target)


def _are_too_many(claim: Claim, claims: Sequence[Claim], scene: Scene) -> bool:
    """Whether more claims are about things of one type, or type and colour, than there are."""
    things = (scene.target, *scene.objects, *scene.others, *scene.hidden)
    known = [entry for entry in things if _names(replace(claim, colour=None), entry)]
    stated = [other for other in claims if other.kind == claim.kind]
    if claim.kind != TARGET and claim.colour is not None:
        alike = [other for other in stated if other.colour == claim.colour]
        if len(alike) > max(1, sum(_names(claim, entry) for entry in known)):
            return True
    return len(stated) > max(1, len(known))


def credit_of(claim: Claim, entry: Entry) -> float:
    """Credit in [0, 1] of a claim about a thing that it names; 0 if any part of it is wrong."""
    if claim.in_view is not None and claim.in_view != entry.visible:
        return 0.0
    if any(_apart(wrong, entry.bearing) <= SECTOR for wrong in claim.excluded):
        return 0.0
    if claim.bearing is not None:
        leeway = LEEWAY if claim.exact else SECTOR + LEEWAY
        if _apart(claim.bearing, entry.bearing) > leeway:
            return 0.0
    if claim.metres is not None and abs(claim.metres - entry.metres) > max(
        METRES, SHARE * entry.metres
    ):
        return 0.0
    if claim.in_view is False:
        return 1.0
    if claim.bearing is None:
        return NOTICED if claim.metres is None else MEASURED
    return PLACED if claim.metres is None else 1.0


def has_changed(claims: Sequence[Claim], before: Scene, after: Scene) -> bool:
    """Whether what claims speak of became different, at the precision they speak with."""
    return any(_seen_as(claim, before) != _seen_as(claim, after) for claim in claims)


def _seen_as(claim: Claim, scene: Scene) -> list[tuple[Any, ...]]:
    """The things a claim can be about, as far as it speaks of them."""
    return [
        (
            entry.visible,
            claim.bearing is not None and round(entry.bearing / (2 * SECTOR)),
            claim.metres is not None and round(2 * entry.metres),
        )
        for entry in (scene.target, *scene.objects)
        if _names(claim, entry) or (claim.kind == TARGET and entry is scene.target)
    ]


def _apart(one: float, other: float) -> float:
    """Degrees between two bearings."""
    return abs((one - other + 180.0) % 360.0 - 180.0)
