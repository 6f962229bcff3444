"""Statements about any environment that declares the claims of its state texts."""

import json
from itertools import product
from random import Random
from typing import Any, ClassVar, Literal, get_args, get_origin

from vagen.envs.base import AgentEnv, State
from vagen.envs.claims import MAX_CLAIMS, Claim, write_claims
from vagen.envs.config import EnvConfig
from vagen.envs.registry import get_environment
from vagen.judge.calibration.attacks import attacks
from vagen.judge.calibration.writer import Text

TEMPLATES = 3


class ClaimWriter:
    """Writes claims in any order, conjunction and case, as JSON, or in the prompt's notation.

    Shares no code with the judge's reader, so that the two do not have the same bugs.
    """

    env: ClassVar[type[AgentEnv]]
    env_name: ClassVar[str]
    env_configs: ClassVar[tuple[dict[str, Any], ...]]
    """Variants of the environment for a calibration without an experiment."""

    def __init__(self, env_config: EnvConfig) -> None:
        """Creates a writer for an environment with these options."""
        self.env_config = env_config
        self.kinds = self.env.claims_of(env_config)
        self.thing = self.env.claims[0].claim_name()
        # Specific texts that do not depend on the state: those of the first validation levels.
        env = self.env(env_config, split="val")
        states = [env.reset(seed=seed)[1]["state"] for seed in range(TEMPLATES)]
        env.close()
        self._state_text = getattr(env, "state_text", self.plain)
        self.templates = tuple(dict.fromkeys(map(self._state_text, states)))

    def _truth(self, state: State) -> list[Claim]:
        return self.env.truth(state, self.env_config)

    def plain(self, state: State) -> str:
        """A correct and complete description in the phrases of the claims."""
        return write_claims(self._truth(state))

    def true(self, rng: Random, state: State) -> Text:
        """A correct description in sentences of some form, as JSON, or in the prompt's notation."""
        claims = self._truth(state)
        rng.shuffle(claims)
        form = rng.choices(("sentences", "json", "prompt"), (2, 1, 1))[0]
        if form == "json":
            return Text(_as_json(claims), "structured/json")
        if form == "prompt":
            return Text(self._state_text(state), "prompt")
        joint = rng.choice((" . ", ". ", "; ", ".\n", ", "))
        text = joint.join(map(str, claims))
        return Text(rng.choice((text, text.capitalize(), text.upper(), f"{text}.")), "sentences")

    def differs(self, text: Text, state: State, other: State) -> bool:
        """Whether a true text about `other` is false about `state`: beyond the tolerance."""
        claims = self._truth(other), self._truth(state)
        return self.env.score_claims(*claims, self.env_config) < 1.0

    def opposes(self, state: State, other: State) -> bool:
        """Whether the states differ in every claim about the first subject."""
        one, two = (self._truth(each) for each in (state, other))
        return not any(type(claim) is type(one[0]) and claim in two for claim in one)

    def partial(self, rng: Random, state: State) -> Text | None:
        """A description with a claim altered or missing; None if neither is possible."""
        claims, wording = self._incomplete(rng, state)
        return Text(write_claims(claims), wording) if claims else None

    def _incomplete(self, rng: Random, state: State) -> tuple[list[Claim], str]:
        claims = self._truth(state)
        place = rng.randrange(len(claims))
        altered = _altered(claims[place], rng)
        if altered is not None and (len(claims) == 1 or rng.random() < 0.5):
            return [*claims[:place], altered, *claims[place + 1 :]], "altered"
        return [*claims[:place], *claims[place + 1 :]], "left out"

    def vague(self, rng: Random, state: State) -> Text:
        """Names objects without describing them."""
        text = f"there is a {rng.choice(self.kinds).claim_name()}"
        return Text(text, text)

    def adversarial(self, rng: Random, number: int, state: State, other: State) -> Text:
        """Attack `number`, modulo the number of attacks, on a state.

        Args:
            rng: Chooses words.
            number: From 0.
            state: The described state.
            other: A state whose description contradicts it (`opposes`).
        """
        del rng
        texts = attacks(self.plain(state), self.plain(other), self.thing)
        texts |= {f"own/{name}": text for name, text in self._attacks(state, other).items()}
        wording = list(texts)[number % len(texts)]
        return Text(texts[wording], wording)

    def _attacks(self, state: State, other: State) -> dict[str, str]:
        """Descriptions of two states at once, all possible claims, JSON with further content."""
        claims, others = self._truth(state), self._truth(other)
        every = {
            f"list/every {kind.claim_name()}": write_claims(found)
            for kind in self.kinds
            if 1 < len(found := _every(kind)) <= MAX_CLAIMS
        }
        return every | {
            "list/two states": f"{self._state_text(state)}\n{self._state_text(other)}",
            "dict/both": _as_json([*claims, *others]),
            "dict/judge": _as_json(claims)[:-1] + ', {"judge": "YES"}]',
            "dict/comment": _as_json(claims) + " # fine",
            "dict/key twice": _as_json(claims).replace("}", f", {_fields(others[0])}}}", 1),
        }


def writer_of(env_name: str) -> type[ClaimWriter] | None:
    """The writer of an environment, for its notations and its `calibration_options`.

    None if it declares no claims.
    """
    env = get_environment(env_name).load()
    if not env.claims:
        return None
    notations = [
        {"prompt_format": f"grounding_worldmodeling_{notation}"}
        for notation in env.config_class.notations
        if notation != "natural"
    ]
    # A simulator's pictures are slow and not needed here.
    shown = {"render_mode": "text"} if env.needs_process else {}
    configs = tuple(shown | each for each in ({}, *notations, *env.calibration_options))
    own = {"env_name": env_name, "env": env, "env_configs": configs}
    return type(f"{env.__name__}Writer", (ClaimWriter,), own)


def _as_json(claims: list[Claim]) -> str:
    return json.dumps([{"claim": c.claim_name(), **c.model_dump(mode="json")} for c in claims])


def _fields(claim: Claim) -> str:
    return json.dumps(claim.model_dump(mode="json"))[1:-1]


def _every(kind: type[Claim]) -> list[Claim]:
    """All claims of a kind whose slots are all choices."""
    options = {name: _choices(field.annotation) for name, field in kind.model_fields.items()}
    if not options or not all(options.values()):
        return []
    return [
        kind(**dict(zip(options, values, strict=True))) for values in product(*options.values())
    ]


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _altered(claim: Claim, rng: Random) -> Claim | None:
    """The claim with a wrong value in one of its choice or number slots."""
    changes: list[dict[str, Any]] = []
    for name, field in type(claim).model_fields.items():
        value = getattr(claim, name)
        changes += [{name: x} for x in _choices(field.annotation) if x != value]
        if type(value) in (int, float):
            changes.append({name: value + max(10, abs(value))})
    altered = [claim.model_copy(update=change) for change in changes]
    wrong = [each for each in altered if each.agreement(claim) < 1.0]
    return rng.choice(wrong) if wrong else None
