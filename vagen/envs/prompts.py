"""Prompt texts common to all environments: format, action rule, observations."""

from vagen.envs.config import EnvConfig
from vagen.envs.parsing import SectionName, write_response


def action_rule(config: EnvConfig) -> str:
    """Rule for the number and separator of actions in an answer."""
    if config.max_actions_per_step == 1:
        return "Answer with one action."
    return (
        f"Answer with one to {config.max_actions_per_step} actions, "
        f"separated by {config.action_sep!r}; they are carried out in order."
    )


def format_line(config: EnvConfig) -> str:
    """The layout of a response, without an example."""
    layout = config.layout
    texts: dict[SectionName, str] = dict.fromkeys(layout.sections, "...")
    texts["memory"] = "keep or drop"
    return "Write exactly: " + write_response(layout, config.tags, texts)


def system_text(config: EnvConfig, *, rules: str, state_rule: str, example: str) -> str:
    """The system prompt: rules, format and example.

    Args:
        config: The environment's options.
        rules: The game, the observations, and the actions.
        state_rule: Description of the state texts.
        example: A valid response.
    """
    tags, layout = config.tags, config.layout
    describes = [
        text
        for section, text in (
            ("observation", f"<{tags.observation}>: the state before your actions."),
            ("reasoning", f"<{tags.reasoning}>: why you choose them."),
            ("prediction", f"<{tags.prediction}>: the state after them."),
        )
        if section in layout.inner
    ]
    if "observation" in layout.inner or "prediction" in layout.inner:
        describes.append(state_rule)
    if layout.memory:
        describes.append(
            f"<{tags.memory}>: keep what you are shown now if you will need to see it again, "
            "drop it if not."
        )
    lines = [
        rules,
        action_rule(config),
        format_line(config),
        *describes,
        f"Write nothing outside the tags. Example:\n{example}",
    ]
    return "\n".join(lines)


class TurnPrompt:
    """Writes the user message of a turn, without rewards."""

    def __init__(self, config: EnvConfig) -> None:
        self._brief = config.prompt_detail == "brief"
        self._reminder = f"{action_rule(config)}\n{format_line(config)}"

    def __call__(self, shown: str, moves: tuple[str, ...] | None) -> str:
        """Writes the message.

        Args:
            shown: The image placeholder, or the state as text.
            moves: Actions executed in the previous turn; None at the start.
        """
        if self._brief:
            return shown
        if moves is None:
            opening = "This is the start."
        elif moves:
            opening = f"Carried out: {', '.join(moves)}. This is the state now."
        else:
            opening = "Your response held no valid action, so nothing changed."
        return f"{opening}\n{shown}\n{self._reminder}"
