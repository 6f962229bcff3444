"""Rules of Navigation: where the target and the nearest things in view are from the agent."""

import json
from typing import ClassVar

from vagen.envs.base import State
from vagen.envs.config import EnvConfig
from vagen.envs.navigation.config import NavigationConfig
from vagen.judge.rules.base import Reading, Rules
from vagen.judge.scene.language import Description, read_description
from vagen.judge.scene.lexicon import VOCABULARY
from vagen.judge.scene.matching import Scene, has_changed, refusal_of, scene_of, score_scene

MOST_CLAIMS = 8
"""Things that a description may speak of: a state has six, and a list of all there are is none."""


MOST_MENTIONS = 3
"""How often a description may speak of one thing."""


class NavigationRules(Rules[Description, Scene]):
    """A description must say of the target where it is, or that it is not in view."""

    env_name: ClassVar[str] = "Navigation"
    vocabulary: ClassVar[frozenset[str]] = VOCABULARY

    def __init__(self, *, all_required: bool = False) -> None:
        """Creates the rules; `all_required`: a full score takes the nearest things in view too."""
        self.all_required = all_required

    @classmethod
    def from_config(cls, env_config: EnvConfig | None) -> "NavigationRules":
        """Other things are required where the environment's own state texts describe them."""
        if not isinstance(env_config, NavigationConfig):
            return cls()
        return cls(all_required=env_config.describes_all)

    def read(self, text: str) -> Reading[Description]:
        """The claims of sentences or of JSON."""
        description = read_description(text)
        if not description.understood:
            return Reading(description, understood=False)
        flags = []
        if not description.claims:
            flags.append("no_entity")
        elif all(
            claim.bearing is None and claim.metres is None and claim.in_view is not False
            for claim in description.claims
        ):
            flags.append("no_relation")
        if len(description.claims) > MOST_CLAIMS or description.mentions > MOST_MENTIONS:
            flags.append("repeated")
        if description.contradiction:
            flags.append("contradiction")
        return Reading(description, tuple(flags))

    def truth(self, state: State) -> Scene:
        """The target and what is in view."""
        return scene_of(state)

    def score(self, content: Description, truth: Scene) -> tuple[float, tuple[str, ...]]:
        """Credit of the target and F1 of the other things; 0 where what is named is not there."""
        refusal = refusal_of(content.claims, truth)
        if refusal is not None:
            return 0.0, (refusal,)
        return score_scene(content.claims, truth, all_required=self.all_required), ()

    def has_changed(self, content: Description, before: Scene, after: Scene) -> bool:
        """Directions, distances and sight of the things that are spoken of."""
        return has_changed(content.claims, before, after)

    def describe(self, state: State) -> str:
        """Direction and distance of the target and of the things around."""
        lines = [
            "Directions are relative to where the agent looks, distances are metres on the floor.",
            f"The target is the {_where(state['target'])}.",
        ]
        if not state["target"]["visible"]:
            lines.append("It is not in view.")
        seen = [*state["objects"], *state["others"]]
        lines += [f"In view is a {_where(entry)}." for entry in seen]
        lines += [f"Not in view is a {_where(entry)}." for entry in state["hidden"]]
        return "\n".join(lines)

    def canonical(self, state: State) -> str:
        """Target and things around; the agent's place itself is not spoken of."""
        return json.dumps(
            [state[key] for key in ("target", "objects", "others", "hidden")], sort_keys=True
        )


def _where(entry: dict) -> str:
    colour = f"{entry['colour']} " if entry["colour"] else ""
    return (
        f"{colour}{entry['type']}: {entry['direction']} "
        f"({entry['bearing']:.0f} degrees to the right), {entry['distance']:.1f} m away"
    )
