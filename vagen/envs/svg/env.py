"""SVG as an environment, and its options: shows an image; an answer is a document that draws it."""

import hashlib
import json
from random import Random
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from vagen.envs.base import IMAGE_PLACEHOLDER, Observation, State
from vagen.envs.config import EnvConfig, Served
from vagen.envs.levels import Split
from vagen.envs.parsing import ActionReader, PromptFormat
from vagen.envs.svg.features import load_scorer
from vagen.envs.svg.icons import Icon, draw_icon, sample_icon
from vagen.envs.svg.raster import RasterError, rasteriser
from vagen.envs.svg.safety import ELEMENTS, UnsafeSVG, colours_and_shapes, read_document
from vagen.envs.svg.score import Target, compare
from vagen.envs.turns import TurnEnv

EXAMPLE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 256 256">'
    '<rect x="64" y="80" width="96" height="128" fill="red"/></svg>'
)
WHITE = 255
ScorePart = Literal["structure", "colour", "edges", "dino", "dreamsim"]

SCORERS: dict[str, dict[ScorePart, float]] = {
    "embedded": {"structure": 0.3, "colour": 0.3, "edges": 0.4},
    "dino": {"dino": 1.0},
    "dreamsim": {"dreamsim": 1.0},
}
"""Weights of the parts of a score, by scorer."""


class SVGConfig(EnvConfig):
    """Options of SVG."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {
        "vagen-legacy": {"format": 0.5, "score": 1.0, "improvement": 0.0},
        "vagen-new": {"format": 0.1, "score": 0.0, "improvement": 1.0},
    }

    prompt_format: PromptFormat = "free_think"
    """Reasoning strategy; there are no state texts to judge."""
    max_actions_per_step: PositiveInt = 1
    """Documents in one response: always 1."""
    action_sep: str = "~~"
    """Not used, since an answer has one document."""
    side: int = Field(256, ge=32, le=512)
    """Side of the images in pixels."""
    difficulty: tuple[int, int] = (1, 3)
    """Minimum and maximum level of the targets, from 1 to 5."""
    success_score: float = Field(0.9, gt=0.0, le=1.0)
    """Score that solves an episode."""
    scorer: Literal["embedded", "dino", "dreamsim", "weights"] = "embedded"
    """Image similarity: structure, colour and edges (`embedded`), a pretrained model, or the parts
    of `score_weights`."""
    score_weights: dict[ScorePart, float] | None = None
    """Weight of each part for `scorer: weights`; normalised by their sum."""
    dino_path: Annotated[str | None, Served()] = None
    """Model directory of DINOv2."""
    dreamsim_path: Annotated[str | None, Served()] = None
    """Model directory of DreamSim."""

    @model_validator(mode="after")
    def _can_draw(self) -> "SVGConfig":
        if self.max_actions_per_step != 1:
            raise ValueError("max_actions_per_step is 1: an answer is one document")
        least, most = self.difficulty
        if not 1 <= least <= most <= 5:
            raise ValueError(
                f"difficulty is the least and the greatest level, from 1 to 5; got {least}, {most}"
            )
        if (self.scorer == "weights") != (self.score_weights is not None):
            raise ValueError("score_weights goes with scorer = weights, and only with it")
        weights = self.part_weights
        if min(weights.values(), default=0.0) < 0 or sum(weights.values()) <= 0:
            raise ValueError("score_weights needs at least one weight above 0, and none below")
        folders: dict[ScorePart, str | None] = {
            "dino": self.dino_path,
            "dreamsim": self.dreamsim_path,
        }
        for part, folder in folders.items():
            if weights.get(part, 0.0) > 0 and folder is None:
                raise ValueError(f"{part} is scored by a model: name its directory in {part}_path")
        return self

    @property
    def part_weights(self) -> dict[ScorePart, float]:
        """Weight of each part of a score."""
        return SCORERS[self.scorer] if self.score_weights is None else self.score_weights


class SVGEnv(TurnEnv):
    """Draw the target; each answer is a new drawing, scored by how alike the two pictures are.

    The agent sees the target and, after its first answer, its last drawing. An episode ends when a
    drawing is similar enough.
    """

    env_name: ClassVar[str] = "SVG"
    config_class: ClassVar[type[SVGConfig]] = SVGConfig
    gallery_options: ClassVar[dict[str, Any]] = {"max_steps": 2}
    markup_answer: ClassVar[bool] = True
    example_state: ClassVar[State] = {
        "env_name": "SVG",
        "target": EXAMPLE,
        "drawing": None,
        "shapes": [],
        "scores": {},
        "score": 0.0,
        "best": 0.0,
    }
    example_actions: ClassVar[tuple[str, ...]] = (EXAMPLE,)

    config: SVGConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Creates the environment; the arguments are those of `TurnEnv`.

        Raises:
            ScorerError: The directory of a configured scorer is missing.
            ImportError: resvg_py or scikit-image is not installed.
        """
        super().__init__(*args, **kwargs)
        config = self.config
        self._raster = rasteriser(config.side)
        self._weights: dict[str, float] = {
            part: weight for part, weight in config.part_weights.items() if weight
        }
        folders = {"dino": config.dino_path, "dreamsim": config.dreamsim_path}
        self._models = {
            part: load_scorer(part, str(folder))
            for part, folder in folders.items()
            if part in self._weights
        }

    @classmethod
    def sample_level(cls, config: SVGConfig, seed: int, split: Split) -> Icon:
        """The icon of `reset(seed=seed)` in this split."""
        return sample_icon(config.difficulty, seed, split)

    @classmethod
    def difficulty(cls, level: Icon) -> tuple[float, ...]:
        """The icon's level, 1 to 5."""
        return (level.difficulty,)

    @classmethod
    def distance(cls, state: State) -> float | None:
        """1 minus the drawing's score."""
        return 1.0 - state["score"]

    def _frame_size(self) -> tuple[int, int]:
        return self.config.side, self.config.side

    def _load_level(self, level: Icon, seed: int) -> None:
        self._icon = level
        self._target = Target.of(self._raster.draw(level.document))
        self._drawing: NDArray[np.uint8] | None = None
        self._document: str | None = None
        self._scores: dict[str, float] = {}
        self._score = self._best = 0.0

    def _action_reader(self) -> ActionReader:
        return _checked

    def _move(self, action: str) -> tuple[float, bool]:
        try:
            drawing = self._raster.draw(action)
        except (UnsafeSVG, RasterError):  # allowed, but beyond the limits of rendering
            drawing = np.full((*self._frame_size(), 3), WHITE, np.uint8)
        self._drawing, self._document = drawing, action
        self._scores, self._score = self._compare(drawing)
        gained = max(self._score - self._best, 0.0)
        self._best += gained
        reward = self._rewards["score"] * self._score + self._rewards["improvement"] * gained
        return max(reward, 0.0), self._is_won()

    def _compare(self, drawing: NDArray[np.uint8]) -> tuple[dict[str, float], float]:
        """Scores by part, and their weighted mean."""
        target = self._target
        scores: dict[str, float] = {}
        if len(self._models) < len(self._weights):
            scores |= compare(target, drawing)
        for part, model in self._models.items():
            scores[part] = model.score(target.picture, drawing)
        weights = self._weights
        mean = sum(weight * scores[part] for part, weight in weights.items())
        mean /= sum(weights.values())
        # Rounded, as the last bits depend on the CPU and states are compared.
        return {part: round(scores[part], 6) for part in weights}, round(mean, 6)

    def _is_won(self) -> bool:
        return self._document is not None and self._score >= self.config.success_score

    def _read_state(self) -> State:
        document = self._document
        return {
            "env_name": self.env_name,
            "target": self._icon.document,
            "drawing": None if document is None else _digest(document),
            "shapes": [] if document is None else colours_and_shapes(read_document(document)),
            "scores": dict(self._scores),
            "score": self._score,
            "best": self._best,
        }

    def _plan(self, count: int) -> list[str]:
        return [self._icon.document]

    def any_action(self, chance: Random) -> str:
        """Another icon of the target's level."""
        return draw_icon(chance, self._icon.difficulty)

    def _after(self, state: State, actions: list[str]) -> State:
        document = actions[-1]
        scores, score = dict.fromkeys(self._weights, 1.0), 1.0  # scores of a copy
        if document != state["target"]:
            scores, score = self._compare(self._raster.draw(document))
        return {
            **state,
            "drawing": _digest(document),
            "shapes": colours_and_shapes(read_document(document)),
            "scores": scores,
            "score": score,
            "best": max(score, state["best"]),
        }

    def picture(self) -> NDArray[np.uint8]:
        """The last drawing; the target before the first one."""
        drawing = self._target.picture if self._drawing is None else self._drawing
        return drawing.copy()

    def text_view(self) -> str:
        """The target's source, which text-only models and quick tests can copy."""
        return self._icon.document

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        if self.config.render_mode == "text":
            return self.text_view(), ()
        target = self._target.picture.copy()
        if self._drawing is None:
            return f"target : {IMAGE_PLACEHOLDER}", (target,)
        return (
            f"target : {IMAGE_PLACEHOLDER}\ndrawing : {IMAGE_PLACEHOLDER}",
            (target, self._drawing.copy()),
        )

    def _observe(self, moves: tuple[str, ...] | None) -> Observation:
        # The document is in the response already; only its result is shown.
        return super()._observe(("your document",) if moves else moves)

    def state_text(self, state: State) -> str:
        """Colours and shapes of the target and the drawing."""
        target = colours_and_shapes(read_document(state["target"]))
        if self.config.layout.notation == "structured":
            return json.dumps({"target": target, "drawing": state["shapes"]})
        return f"target shows {_listed(target)} . drawing shows {_listed(state['shapes'])}"

    def _reason(self, actions: list[str]) -> str:
        return f"draw {_listed(colours_and_shapes(read_document(actions[-1])))}"

    def _state_rule(self) -> str:
        return (
            "Describe a state by what the target and the drawing show, colour and shape in the "
            f"order in which they are drawn, such as: {self.state_text(self.example_state)}"
        )

    def _rules(self) -> str:
        side = self.config.side
        shown = "picture" if self.config.render_mode == "vision" else "document"
        return (
            f"You draw: a target {shown} is shown, and you write one SVG document that looks the "
            f"same on a white sheet of {side} by {side} pixels. Afterwards your drawing is shown "
            "beside the target, and you may draw it anew.\n"
            "An action is one whole document, from <svg ...> to </svg>. It may hold the elements "
            f"{', '.join(sorted(ELEMENTS - {'svg'}))}. Nothing outside the document may be "
            "referred to; text, style sheets, scripts, filters and images are not drawn."
        )

    def _brief_rules(self) -> str:
        return "draw the target as one svg document"


def _checked(text: str) -> str | None:
    """The document if it is allowed, otherwise None."""
    try:
        read_document(text)
    except UnsafeSVG:
        return None
    return text


def _digest(document: str) -> str:
    return hashlib.sha256(document.encode()).hexdigest()


def _listed(shapes: list[list[str]]) -> str:
    return " , ".join(" ".join(shape) for shape in shapes) or "nothing"
