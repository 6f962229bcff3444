"""Options of all environments."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from vagen.config.base import DIGEST_EXEMPT, Fraction, Section
from vagen.envs.parsing import LAYOUTS, Layout, Notation, PromptFormat, Tags

RewardPreset = Literal["vagen-legacy", "vagen-new"]


EXTRA_PARTS = {"format_penalty": 0.0}
"""Parts of rewards that are 0 in all presets, such as `format_penalty` (RAGEN: -.1)."""


MAX_PIXELS = 1024
"""Maximum side of an image of the environment service."""


@dataclass(frozen=True, slots=True)
class Served:
    """Marks options (`Annotated[type, Served()]`) that clients of the environment service may not
    set freely.
    """

    at_most: int | None = None
    """Maximum value; None: only the default, since it names a file or a model."""


class EnvConfig(Section):
    """Options of every environment."""

    reward_presets: ClassVar[dict[str, dict[str, float]]] = {}
    notations: ClassVar[tuple[Notation, ...]] = ("natural", "structured")
    """Possible notations of its state texts."""

    render_mode: Literal["vision", "text"] = "vision"
    """Whether observations have images or the state as text."""
    prompt_format: PromptFormat = "grounding_worldmodeling"
    """Reasoning strategy, with suffix `_structured` or `_symbolic` for its state texts."""
    prompt_detail: Literal["full", "brief"] = "full"
    """`full`: rules, format and an example in sentences; `brief`: a few words, for tiny models."""
    tags: Tags = Tags()
    """Names of the tags in a response."""
    memory: Annotated[bool, DIGEST_EXEMPT] = False
    """Whether the last section of a response keeps or drops the observation before it. Set by
    `rollout_manager.context=gate`."""
    max_actions_per_step: PositiveInt = 3
    """Maximum actions in one response; a further one is invalid."""
    action_sep: str = ","
    """Separator of the actions in an answer."""
    max_steps: PositiveInt = 100
    """Actions until truncation."""
    reward: RewardPreset = "vagen-legacy"
    """Reward preset."""
    reward_overrides: dict[str, float] = Field(default_factory=dict)
    """Values that override parts of the preset, by part name."""
    expert_actions_per_turn: PositiveInt = 1
    """Actions per response of the expert."""
    expert_random_moves: Annotated[Fraction, DIGEST_EXEMPT] = 0.0
    """Share of the expert's responses with a random action and its true outcome. Set by
    `warm_start.random_moves`."""

    @field_validator("prompt_format")
    @classmethod
    def _has_notation(cls, prompt_format: PromptFormat) -> PromptFormat:
        notation = LAYOUTS[prompt_format].notation
        if notation not in cls.notations:
            raise ValueError(
                f"{prompt_format}: a state of this environment cannot be written as {notation}; "
                f"use {prompt_format.removesuffix(f'_{notation}')}"
            )
        return prompt_format

    @field_validator("action_sep")
    @classmethod
    def _separates(cls, separator: str) -> str:
        if not separator.strip() or separator != separator.strip() or separator.isalnum():
            raise ValueError(f"must be punctuation without spaces around it; got {separator!r}")
        return separator

    @model_validator(mode="after")
    def _fits_together(self) -> "EnvConfig":
        if self.expert_actions_per_turn > self.max_actions_per_step:
            raise ValueError(
                f"expert_actions_per_turn is {self.expert_actions_per_turn}, but an answer may "
                f"hold only max_actions_per_step = {self.max_actions_per_step}"
            )
        parts = {**EXTRA_PARTS, **self.reward_presets.get(self.reward, {})}
        for name in self.reward_overrides:
            if name not in parts:
                raise ValueError(
                    f"reward_overrides has no part {name!r}: its parts are {', '.join(parts)}"
                )
        return self

    @property
    def layout(self) -> Layout:
        """Layout of a response under `prompt_format` and `memory`."""
        layout = LAYOUTS[self.prompt_format]
        return replace(layout, memory=True) if self.memory else layout

    @property
    def reads_thought(self) -> bool:
        """Whether a response begins with `<think>`, also if the chat template opened it."""
        return self.layout.think and self.tags.think == "think"

    @property
    def picture_side(self) -> int:
        """Longer side of an image in pixels; 0 if another option limits it."""
        return 0

    def not_served(self) -> Iterator[tuple[str, str]]:
        """Options that the environment service rejects, each with the reason."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            for mark in (each for each in field.metadata if isinstance(each, Served)):
                if mark.at_most is None and value != field.default:
                    yield (
                        name,
                        "the service opens no file of a client's choice; leave it out, or run "
                        "environments in worker processes",
                    )
                elif mark.at_most is not None and value > mark.at_most:
                    yield name, f"the service does at most {mark.at_most}"
        if self.picture_side > MAX_PIXELS:
            yield (
                "tile_size",
                f"a picture of {self.picture_side} pixels; the service draws at most {MAX_PIXELS}",
            )

    @property
    def reward_values(self) -> dict[str, float]:
        """The preset with overrides."""
        return {**EXTRA_PARTS, **self.reward_presets[self.reward], **self.reward_overrides}
