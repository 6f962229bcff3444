"""Graders for checks that OpenEnv 0.10 names and does not implement, as its RFC 008 says of them.

They are entry points of the group `openenv.validation.graders`. `openenv validate` of OpenEnv 0.10
loads none of these; `vagen env check FOLDER --openenv` does.
"""

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import pvariance
from typing import Any, ClassVar

import httpx
from openenv.validation import (
    CheckResult,
    CheckStatus,
    Level,
    NormalizedManifest,
    ProviderCapability,
    Subject,
)

from vagen.envs.check_form import same
from vagen.interop.openenv_player import SEEDS, Player, Undecided, best

REPEATS = 5
"""Number of resets, or of episodes for their rewards, that must agree."""
JUDGED_REPEATS = 20
"""Their number if a language model judges; the variance of rewards is bounded then."""
FEWEST_CHARACTERS, FEWEST_ACTIONS = 8, 4
"""Length of a text, and of a list of actions, from which an occurrence is no chance."""
Found = tuple[list[str], dict[str, Any]]
"""Problems, and what was measured."""


def difference(one: Any, other: Any, path: str = "") -> str:
    """The first place where two results differ, such as `2.observation.text`; empty if equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys: list[Any] = sorted(one.keys() | other.keys())
        left, right = map(one.get, keys), map(other.get, keys)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        keys, left, right = list(range(len(one))), iter(one), iter(other)
    else:
        return "" if same(one, other) else path or "the number of turns"
    places = (f"{path}.{key}".lstrip(".") for key in keys)
    return next(filter(None, map(difference, left, right, places)), "")


class Contract(ABC):
    """A grader."""

    check_id: ClassVar[str]
    level: ClassVar[Level] = Level.RUNTIME
    requires_capabilities: ClassVar[frozenset[str]] = frozenset()
    requires_provider: ClassVar[frozenset[ProviderCapability]] = frozenset()
    depends_on: ClassVar[tuple[str, ...]] = ("runtime.startup",)
    remedy: ClassVar[str]
    """What makes a failing environment pass."""

    def applies_to(self, manifest: NormalizedManifest) -> bool:
        """Every environment."""
        return True

    @abstractmethod
    def _grade(self, player: Player) -> Found:
        """Raises `Undecided` if something is missing."""

    def run(self, subject: Subject) -> CheckResult:
        """The result; a server that breaks is an error."""
        started = time.monotonic()
        remedy, measured = None, dict[str, Any]()
        try:
            evidence, measured = self._grade(Player(subject))
            status = CheckStatus.FAIL if evidence else CheckStatus.PASS
            remedy = self.remedy if evidence else None
        except Undecided as reason:
            status, evidence = CheckStatus.SKIP, [str(reason)]
        except (ValueError, OSError, RuntimeError, httpx.HTTPError) as error:
            status, evidence = CheckStatus.ERROR, [f"{type(error).__name__}: {error}"]
        return CheckResult(
            check_id=self.check_id,
            status=status,
            measured=measured,
            evidence=evidence,
            remediation=remedy,
            duration_s=time.monotonic() - started,
        )


class SeedControl(Contract):
    """The same seed gives the same first reply in new sessions; some seed gives another."""

    check_id = "runtime.seed_control"
    remedy = "take all chance of an episode from the seed of reset"

    def _grade(self, player: Player) -> Found:
        def first(offset: int) -> dict[str, Any]:
            with player.session() as session:
                return player.begin(session, player.seeded(offset))

        shown = first(0)
        if where := next(filter(None, (difference(shown, first(0)) for _ in range(REPEATS))), ""):
            return [f"two sessions with the same seed differ at reset: {where}"], {}
        if all(same(shown, first(offset)) for offset in range(1, SEEDS)):
            one, other = (player.alone(player.seeded(offset)) for offset in (0, 1))
            if same(one, other):
                raise Undecided(
                    f"{SEEDS} seeds give the same episode: needs a seed that changes it, since one "
                    "that is ignored cannot be told from an environment without chance"
                )
        return [], {"seeds": SEEDS}


class EpisodeDeterminism(Contract):
    """The probe gives the same replies and states in new sessions."""

    check_id = "runtime.episode_determinism"
    remedy = "take all chance from the seed of reset, and show no time, address or identity"

    def _grade(self, player: Player) -> Found:
        episodes = [player.alone(player.plan) for _ in range(3)]
        if player.manifest.capabilities.llm_judged:
            for reply in (reply for episode in episodes for reply in episode):
                reply["reward"] = None  # semantic.verifier_determinism bounds its variance
        found = [difference(episodes[0], other) for other in episodes[1:]]
        problems = [f"the same seed and actions differ at {where}" for where in found if where]
        return problems[:1], {"sessions": 3, "turns": len(episodes[0]) - 1}


class EpisodeIsolation(Contract):
    """An episode depends neither on those before it in its session nor on one beside it."""

    check_id = "runtime.episode_isolation"
    depends_on = ("runtime.startup", "runtime.episode_determinism")
    remedy = "begin anew at reset, and keep nothing in the class or module"

    def _grade(self, player: Player) -> Found:
        alone = player.alone(player.plan)
        problems, measured = [], {"beside": True}
        with player.session() as session, ExitStack() as second:
            player.play(session, player.seeded(1))
            if where := difference(alone, player.play(session, player.plan)):
                problems.append(f"after another episode in its session it differs at {where}")
            beside: Iterator[Any] = iter(())
            try:
                other = second.enter_context(player.session())
                beside = player.turns(other, player.seeded(1))
                next(beside)
            except RuntimeError as error:
                if "CAPACITY_REACHED" not in str(error):
                    raise
                measured["beside"] = False  # the server has one session only
            results = []
            for reply in player.turns(session, player.plan):
                results.append(reply)
                next(beside, None)
            if where := difference(alone, results):
                problems.append(f"beside another session's episode it differs at {where}")
        return problems, measured


class OracleContainment(Contract):
    """The oracle is neither in the state nor at an address of the server.

    Asks for all addresses of `/openapi.json` without parameters and for the oracle's own path.
    """

    check_id = "runtime.oracle_containment"
    remedy = "keep the oracle out of what the server serves"

    def _grade(self, player: Player) -> Found:
        oracle = player.manifest.capabilities.oracle
        if oracle is None:
            raise Undecided("needs capabilities.oracle")
        text = player.file(oracle.location).read_text()
        content: Any = text
        if oracle.location.endswith(".json"):
            content = json.loads(text)
            if oracle.form == "script":
                content = content["actions"]
            text = json.dumps(content)

        bodies = {"the state": json.dumps(player.alone(player.plan)[0]["state"])}
        with httpx.Client(base_url=player.url, trust_env=False) as client:
            routes = client.get("/openapi.json").raise_for_status().json()["paths"]
            for path in (*(each for each in routes if "get" in routes[each]), oracle.location):
                if "{" not in path:
                    bodies[path] = client.get(path).text

        def holds(body: str) -> bool:
            with suppress(ValueError):
                if content in _nodes(json.loads(body)):
                    return True
            return re.sub(r"\s", "", text) in re.sub(r"\s", "", body)

        served = [where for where, body in bodies.items() if holds(body)]
        return [f"the oracle is in {where}" for where in served], {"asked": list(bodies)}


class ToolDeclarationAccuracy(Contract):
    """`declared_tools` are the tools that the server lists at `/mcp`."""

    check_id = "runtime.tool_declaration_accuracy"
    remedy = "write the names of tools/list into capabilities.declared_tools"

    def _grade(self, player: Player) -> Found:
        ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        asked = httpx.post(f"{player.url}/mcp", json=ask, timeout=60, trust_env=False)
        # An environment without tools answers with an error.
        tools = (asked.raise_for_status().json().get("result") or {}).get("tools", [])
        found = {tool["name"] for tool in tools}
        declared = set(player.manifest.capabilities.declared_tools)
        problems = [f"{name} is declared, but not served" for name in sorted(declared - found)]
        problems += [f"{name} is served, but not declared" for name in sorted(found - declared)]
        return problems, {"tools": sorted(found)}


class _Semantic(Contract):
    level = Level.SEMANTIC
    depends_on = ("runtime.startup", "runtime.episode_determinism")


class OracleMax(_Semantic):
    """The oracle earns the highest declared reward, within the declared tolerance.

    It is a state for `reset(injected_state=)`, or a script: a runtime plan in JSON that is played
    here. An environment without an oracle fails, as OpenEnv's manifest demands.
    """

    check_id = "semantic.oracle_max"
    remedy = "give a capabilities.oracle that earns the upper bound of reward.range"

    def _grade(self, player: Player) -> Found:
        oracle = player.manifest.capabilities.oracle
        if oracle is None:
            return ["no capabilities.oracle is declared"], {}
        try:
            player.file(oracle.location)
        except Undecided as reason:
            return [str(reason)], {}
        reward, wanted = player.solved(), player.manifest.reward
        short = reward < wanted.range[1] - wanted.oracle_tolerance
        problem = f"the oracle earns {reward:g}, not {wanted.range[1]:g}"
        return [problem] if short else [], {"oracle_reward": reward}


class FloorGap(_Semantic):
    """Doing nothing earns less than the oracle, or the declared maximum, by `floor_margin`."""

    check_id = "semantic.floor_gap"
    remedy = "pay no reward for the smallest actions, such as empty texts"

    def _grade(self, player: Player) -> Found:
        wanted, floor = player.manifest.reward, player.floor()
        top = wanted.range[1]
        with suppress(Undecided):
            top = player.solved()
        small = top - floor < wanted.floor_margin
        problem = f"the smallest actions earn {floor:g} of {top:g}; the gap is to be at least"
        problems = [f"{problem} {wanted.floor_margin:g}"] if small else []
        return problems, {"measured_floor": floor, "top": top, "seeds": SEEDS}


class CanaryFloor(_Semantic):
    """Canaries, runtime plans in JSON, earn less than the declared maximum by `floor_margin`."""

    check_id = "semantic.canary_floor"
    remedy = "pay no reward for what the canaries do"

    def _grade(self, player: Player) -> Found:
        location = player.manifest.capabilities.canaries
        found = player.file(location) if location else Path()
        files = sorted(found.glob("*.json")) if found.is_dir() else [found]
        if not location or not files:
            raise Undecided(
                "needs capabilities.canaries: a .json file, or a folder of them, with actions that "
                "must not be paid, as a runtime plan"
            )
        rewards = {path.name: best(player.alone(player.plan_at(path))) for path in files}
        wanted = player.manifest.reward
        most = wanted.range[1] - wanted.floor_margin
        paid = {name: reward for name, reward in rewards.items() if reward > most}
        problems = [f"{name} earns {reward:g}, above {most:g}" for name, reward in paid.items()]
        return problems, {"rewards": rewards}


class NoSolutionLeakage(_Semantic):
    """No action of the oracle, nor the list of them, is in an observation before it is played."""

    check_id = "semantic.no_solution_leakage"
    remedy = "do not show the solution"

    def _grade(self, player: Player) -> Found:
        plan = player.solution()
        actions = [
            [node for node in _nodes(action) if not isinstance(node, dict | list)]
            for action in plan.actions
        ]
        long = [{text for text in each if len(str(text)) >= FEWEST_CHARACTERS} for each in actions]
        whole = (
            [value for each in actions for value in each] if len(actions) >= FEWEST_ACTIONS else []
        )
        if not (whole or any(long)):
            raise Undecided(
                f"needs a solution with a text of {FEWEST_CHARACTERS} characters or "
                f"{FEWEST_ACTIONS} actions; a shorter one is found by chance"
            )
        joined = {sign.join(map(str, whole)) for sign in (" ", ",", ", ", "\n")}
        joined = {each for each in joined if len(each) >= 2 * FEWEST_CHARACTERS}
        shown, problems = set[Any](), list[str]()
        for turn, reply in enumerate(player.alone(plan)):
            nodes = list(_nodes(reply["observation"]))
            texts = [node for node in nodes if isinstance(node, str)]
            later = set().union(*long[turn:]) - shown
            leaked = [text for text in later if any(str(text) in seen for seen in texts)]
            problems += [f"turn {turn} shows {str(text)[:80]!r} of the solution" for text in leaked]
            if turn == 0 and whole:
                listed = whole in nodes or any(each in seen for each in joined for seen in texts)
                problems += ["the first observation lists the solution"] * listed
            shown |= set().union(*long[: turn + 1])
        return problems, {"actions": len(actions)}


class VerifierDeterminism(_Semantic):
    """The same episode earns the same rewards, or within `variance_tolerance` if it is judged.

    Plays the oracle's actions, or else the probe.
    """

    check_id = "semantic.verifier_determinism"
    depends_on = ("runtime.startup",)
    remedy = "compute the reward from the episode alone"

    def _grade(self, player: Player) -> Found:
        plan = player.plan
        with suppress(Undecided):
            plan = player.solution()
        judged = player.manifest.capabilities.llm_judged
        repeats = JUDGED_REPEATS if judged else REPEATS
        rewards = [
            [float(reply.get("reward") or 0.0) for reply in player.alone(plan)]
            for _ in range(repeats)
        ]
        if len({len(each) for each in rewards}) > 1:
            return ["the same actions end after different numbers of turns"], {}
        variance = max(pvariance(each) for each in zip(*rewards, strict=True))
        most = player.manifest.reward.variance_tolerance if judged else None
        problem = f"rewards of the same actions have the variance {variance:g}"
        problems = [problem] if variance > (most or 0.0) else []
        return problems, {"variance": variance, "episodes": repeats}


class Replayability(_Semantic):
    """The recorded episode gives the same replies in another process."""

    check_id = "semantic.replayability"
    remedy = "let nothing depend on the process: no order of sets, no identity, no clock"

    def _grade(self, player: Player) -> Found:
        another = getattr(player.subject.running, "another", None)
        if another is None:
            raise Undecided("needs a second process: vagen env check FOLDER --openenv starts one")
        recorded = player.alone(player.plan)
        with another() as fresh:
            replayed = player.alone(player.plan, fresh.base_url)
        where = difference(recorded, replayed)
        return [f"in another process it differs at {where}"] if where else [], {}


def _nodes(value: Any) -> Iterator[Any]:
    """A JSON value and all its parts."""
    yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _nodes(part)
