"""Texts in sentence frames that readers were not tuned on, like those of a fluent model.

Frames are data (`tests/data/judge/frames.yaml`) in two halves: readers and prompts may be tuned on
`train`; judges are measured on `held_out`.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import ClassVar, Literal

from vagen.config.base import ConfigError, Section
from vagen.config.errors import validate
from vagen.config.yaml_io import read_yaml
from vagen.envs.base import State
from vagen.envs.claims import Claim
from vagen.envs.config import EnvConfig
from vagen.judge.base import SECTIONS
from vagen.judge.calibration.claims import ClaimWriter, writer_of
from vagen.judge.calibration.writer import Text

Half = Literal["train", "held_out"]
ClaimSection = Literal["observation", "prediction"]
COMMA = ", "
JOINTS = (". ", "; ", "\n- ", COMMA)
"""Separators between the clauses of a text."""
OPENED, CLOSED, FILLED, KNOWN = 0.6, 0.2, 0.3, 0.5
"""Shares of texts with an opening, a closing, a clause without claims, and, for held-out texts,
words of the training half."""


class Halves(Section):
    """Frames of one kind in both halves."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def of(self, half: Half) -> tuple[str, ...]:
        """The frames of one half."""
        return getattr(self, half)


class Hack(Halves):
    """Frames that turn a correct text into one that says nothing about the state."""

    section: Literal["observation", "prediction"] | None = None
    """The section where they do so; None for both."""


class Words(Section):
    """Words for the values of some fields, joined by spaces."""

    of: tuple[str, ...]
    train: dict[str, tuple[str, ...]]
    held_out: dict[str, tuple[str, ...]]


class EnvironmentFrames(Section):
    """Frames of one environment."""

    words: dict[str, Words]
    """Words by their name in frames."""
    fillers: Halves
    """Clauses without claims."""
    claims: dict[str, Halves]
    """Frames by a claim's name, by `2 ` and the name for two equal claims, or by a whole phrase."""


class Frames(Section):
    """Content of a file of frames."""

    openings: dict[Literal["observation", "prediction"], Halves]
    closings: Halves
    hacks: dict[str, Hack]
    environments: dict[str, EnvironmentFrames]


def load_frames(path: Path) -> Frames:
    """Reads a file of frames.

    Raises:
        ConfigError: There is no such file, or its format is wrong.
    """
    document = read_yaml(path)
    return validate(Frames, document.tree, document.places.get)


def frame_writer(env_name: str, frames: Frames, half: Half = "held_out") -> "type[FrameWriter]":
    """A writer of texts about an environment in the frames of one half.

    Raises:
        ConfigError: There are no frames for the environment.
    """
    own, plain = frames.environments.get(env_name), writer_of(env_name)
    if own is None or plain is None:
        raise ConfigError(
            f"the file has no frames for {env_name}, but for {', '.join(frames.environments)}"
        )
    natural = tuple(each for each in plain.env_configs if "prompt_format" not in each)
    parts = {"env_configs": natural, "frames": frames, "own": own, "half": half}
    return type(f"{plain.env.__name__}Frames", (FrameWriter, plain), parts)


class FrameWriter(ClaimWriter):
    """Correct and wrong texts in frames, and correct texts in frames that retract them."""

    frames: ClassVar[Frames]
    own: ClassVar[EnvironmentFrames]
    half: ClassVar[Half]

    def __init__(self, env_config: EnvConfig) -> None:
        """Creates a writer.

        Raises:
            ConfigError: There are no frames for a claim in this notation.
        """
        super().__init__(env_config)
        names = [kind.claim_name() for kind in self.kinds]
        if missing := [name for name in names if name not in self.own.claims]:
            raise ConfigError(f"there are no frames for {self.env_name}'s claim `{missing[0]}`")

    def true(self, rng: Random, state: State) -> Text:
        """A description in frames and words of the half; held-out texts have some known words."""
        return self._text(rng, self._truth(state))

    def partial(self, rng: Random, state: State) -> Text | None:
        """A description with a claim altered or missing; None if neither is possible."""
        claims, _ = self._incomplete(rng, state)
        return self._text(rng, claims) if claims else None

    def adversarial(self, rng: Random, number: int, state: State, other: State) -> Text:
        """A correct text in a frame that makes it say nothing about the state."""
        hacks = [
            (f"{kind}/{n:02d}", frame, hack.section)
            for kind, hack in self.frames.hacks.items()
            for n, frame in enumerate(hack.of(self.half), start=1)
        ]
        wording, frame, section = hacks[number % len(hacks)]
        section = section or rng.choice(SECTIONS)
        truth, lie = (self._in_a_sentence(rng, section, each) for each in (state, other))
        return Text(frame.format(truth=truth, lie=lie), wording, section)

    def _text(self, rng: Random, claims: list[Claim]) -> Text:
        section: ClaimSection = rng.choice(SECTIONS)
        known = self.half == "train" or rng.random() < KNOWN
        clauses = self._clauses(rng, claims, section, known=known)
        if rng.random() < FILLED:
            filler = rng.choice(self.own.fillers.of(self.half))
            clauses.insert(rng.randint(0, len(clauses)), filler)
        joint = rng.choice([j for j in JOINTS if j not in "".join(clauses)])
        last = " and " if joint == COMMA and rng.random() < 0.5 else joint
        text = last.join([joint.join(clauses[:-1]), clauses[-1]] if clauses[1:] else clauses)
        if rng.random() < OPENED:
            text = rng.choice(self.frames.openings[section].of(self.half)) + text
        if rng.random() < CLOSED:
            text += rng.choice(self.frames.closings.of(self.half))
        wording = f"{'known' if known else 'new'} words"
        return Text(f"{text[0].upper()}{text[1:]}.", wording, section)

    def _in_a_sentence(self, rng: Random, section: str, state: State) -> str:
        """A correct text, in the controlled language or in frames."""
        if rng.random() < 0.5:
            return self.plain(state)
        said = self._clauses(rng, self._truth(state), section, known=rng.random() < KNOWN)
        return COMMA.join(said)

    def _clauses(
        self, rng: Random, claims: Iterable[Claim], section: str, *, known: bool
    ) -> list[str]:
        """Clauses in random order."""
        frames: dict[str, list[str]] = {}
        later = section == "prediction" and rng.random() < 0.5
        verbs = {"is": "is", "are": "are", "am": "am"}
        found = []
        for claim, count in Counter(claims).items():
            name, together = claim.claim_name(), f"{count} {claim.claim_name()}"
            at_once = together in self.own.claims and rng.random() < 0.5
            key = together if at_once else str(claim) if str(claim) in self.own.claims else name
            if key not in frames:
                options = self.own.claims[key].of(self.half)
                frames[key] = rng.sample(options, min(rng.randint(1, 3), len(options)))
            for _ in range(1 if at_once else count):
                words = verbs if not later else dict.fromkeys(verbs, "will be")
                slots = words | self._words(rng, claim, known=known)
                frame = rng.choice(frames[key])
                found.append(frame.format(**slots))
        rng.shuffle(found)
        return found

    def _words(self, rng: Random, claim: Claim, *, known: bool) -> dict[str, str]:
        """Words for the fields of a claim."""
        values = {name: str(value) for name, value in claim.model_dump().items()}
        half: Half = "train" if known else "held_out"
        written = dict(values)
        for slot, words in self.own.words.items():
            if set(words.of) <= values.keys():
                value = " ".join(values[name] for name in words.of)
                written[slot] = rng.choice(getattr(words, half).get(value, (value,)))
        return written
