"""Plays a server of OpenEnv for its graders, through `/ws`.

The probe is that of `validation.execution`, or else three actions with the smallest values that the
schema of actions allows.
"""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
from openenv.validation import Subject
from openenv.validation.manifest import ExecutionDeclaration, NormalizedManifestV2
from openenv.validation.runtime.contracts import (
    RuntimePlan,
    RuntimePlanError,
    RuntimeReset,
    load_runtime_plan,
)

from vagen.envs.adapters import AdapterError
from vagen.envs.adapters.openenv import RefusedAction, RemoteSession

SEEDS = 8
"""Number of seeds that are compared, and over which the floor is averaged."""
IDLE_STEPS = 20
"""Number of the smallest actions that a floor tries."""

Results = list[dict[str, Any]]
"""Replies of a server to `reset` and to each step: `observation`, `reward`, `done`."""


class Undecided(Exception):
    """A check that cannot be decided; says what it needs."""


class Player:
    """Plays the server of a subject."""

    def __init__(self, subject: Subject):
        """Reads the probe.

        Raises:
            Undecided: There is no server.
        """
        if subject.running is None:
            raise Undecided("needs a running server")
        self.subject = subject
        self.manifest = subject.manifest
        self.url = subject.running.base_url
        self._timeout = min(self.manifest.resources.episode_timeout_s, 60.0)
        self.plan = plan_of(subject)

    @contextmanager
    def session(self, url: str = "") -> Iterator[RemoteSession]:
        """A session with an environment of its own.

        A server with one session needs a moment to end the one before.
        """
        for pause in (0.1, 0.5, 2.0, 0.0):
            with closing(RemoteSession(url or self.url, self._timeout)) as session:
                if not (pause and _is_refused(session)):
                    yield session
                    return
            time.sleep(pause)

    def begin(self, session: RemoteSession, plan: RuntimePlan, **more: Any) -> dict[str, Any]:
        """The reply to the reset of a plan."""
        reset = {"seed": plan.reset.seed, "episode_id": plan.reset.episode_id}
        return session.reset({**plan.reset.options, **reset, **more})

    def play(self, session: RemoteSession, plan: RuntimePlan) -> Results:
        """The replies of an episode, each with the `state` after it, without the episode's id."""
        return list(self.turns(session, plan))

    def turns(self, session: RemoteSession, plan: RuntimePlan) -> Iterator[dict[str, Any]]:
        """Like `play`, reply by reply."""

        def seen(reply: dict[str, Any]) -> dict[str, Any]:
            state = {**session.state(), "episode_id": None}
            return {**reply, "state": state}

        yield (reply := seen(self.begin(session, plan)))
        for action in plan.actions:
            if reply["done"]:
                return
            try:
                yield (reply := seen(session.step(action)))
            except RefusedAction as error:
                raise Undecided(
                    f"the server refuses the action {json.dumps(action)[:200]}: {error}; needs "
                    "actions that it takes in the file of validation.execution.probe_path, and a "
                    "schema whose smallest values are an action"
                ) from error

    def alone(self, plan: RuntimePlan, url: str = "") -> Results:
        """The replies of an episode in a session of its own."""
        with self.session(url) as session:
            return self.play(session, plan)

    def seeded(self, offset: int) -> RuntimePlan:
        """The probe with another seed."""
        seed = (self.plan.reset.seed + offset) % 2**32
        return _changed(self.plan, reset={**self.plan.reset.model_dump(), "seed": seed})

    def file(self, location: str) -> Path:
        """A file or folder of the package.

        Raises:
            Undecided: There is none.
        """
        path = (self.subject.root / location).resolve()
        if not (path.is_relative_to(self.subject.root.resolve()) and path.exists()):
            raise Undecided(f"the package has no {location}")
        return path

    def plan_at(self, path: Path) -> RuntimePlan:
        """A plan in a file of the package.

        Raises:
            Undecided: It is no plan.
        """
        where = path.relative_to(self.subject.root.resolve()).as_posix()
        try:
            return load_runtime_plan(self.subject.root, ExecutionDeclaration(probe_path=where))
        except RuntimePlanError as error:
            raise Undecided(f"{where}: {error}") from error

    def solution(self) -> RuntimePlan:
        """The oracle's actions.

        Raises:
            Undecided: It is not given in this form.
        """
        oracle = self.manifest.capabilities.oracle
        if oracle is None or oracle.form != "script" or not oracle.location.endswith(".json"):
            raise Undecided(
                "needs capabilities.oracle of the form script at a .json file with the solution "
                'as a runtime plan: {"plan_schema_version": "1", "reset": ..., "actions": [...]}'
            )
        return self.plan_at(self.file(oracle.location))

    def solved(self) -> float:
        """The highest reward of the oracle.

        Raises:
            Undecided: There is none that can be played here.
        """
        oracle = self.manifest.capabilities.oracle
        if oracle is None or oracle.form == "script":
            return best(self.alone(self.solution()))
        state = json.loads(self.file(oracle.location).read_text())
        with self.session() as session:
            reward = self.begin(session, self.plan, injected_state=state).get("reward")
        if reward is None:
            raise Undecided("reset(injected_state=...) must return the reward of that state")
        return float(reward)

    def floor(self) -> float:
        """The highest reward of an episode of smallest actions, averaged over seeds."""
        actions = [smallest_action(self.url)] * IDLE_STEPS
        idle = [_changed(self.seeded(offset), actions=actions) for offset in range(SEEDS)]
        return fmean(best(self.alone(plan)) for plan in idle)


def _is_refused(session: RemoteSession) -> bool:
    try:
        session.state()
    except RuntimeError as error:
        return "CAPACITY_REACHED" in str(error)
    return False


def plan_of(subject: Subject) -> RuntimePlan:
    """The probe of `validation.execution`, or else three smallest actions.

    Raises:
        RuntimePlanError: It cannot be read.
        AdapterError: The server gives no schema.
    """
    if isinstance(subject.manifest, NormalizedManifestV2):
        return load_runtime_plan(subject.root, subject.manifest.execution)
    assert subject.running is not None
    return RuntimePlan(
        plan_schema_version="1",
        reset=RuntimeReset(episode_id="validation-probe", seed=42),
        actions=[smallest_action(subject.running.base_url)] * 3,
    )


def _changed(plan: RuntimePlan, **parts: Any) -> RuntimePlan:
    return RuntimePlan.model_validate({**plan.model_dump(), **parts})


def best(results: Results) -> float:
    """The highest reward of an episode; null counts as 0."""
    return max(float(reply.get("reward") or 0.0) for reply in results)


def smallest_action(url: str) -> dict[str, Any]:
    """The action with the smallest values that a server's schema allows, such as empty texts.

    Raises:
        AdapterError: There is no schema.
    """
    try:
        schema = httpx.get(f"{url}/schema", trust_env=False).raise_for_status().json()["action"]
    except (httpx.HTTPError, KeyError) as error:
        raise AdapterError(f"no server of OpenEnv answers at {url}: {error}") from error

    def value(part: dict[str, Any]) -> Any:
        if "$ref" in part:
            return value(schema["$defs"][part["$ref"].rpartition("/")[2]])
        if "default" in part or "const" in part:
            return part.get("default", part.get("const"))
        if "enum" in part:
            return part["enum"][0]
        for key in ("anyOf", "oneOf", "allOf"):
            if key in part:
                return value(part[key][0])
        match part.get("type"):
            case "string":
                return " " * part.get("minLength", 0)
            case "integer" | "number":
                lowest = part.get("minimum", part.get("exclusiveMinimum", -1) + 1)
                return max(lowest, 0)
            case "boolean":
                return False
            case "array":
                return [value(part.get("items", {}))] * part.get("minItems", 0)
            case "null":
                return None
        known = part.get("properties", {})
        return {name: value(known[name]) for name in part.get("required", ())}

    return value(schema)
