"""Play: a person, an expert or a model plays an environment turn by turn, in a browser or here."""

from vagen.play.agents import Agent, agent_named
from vagen.play.game import Game, Shown, experiment_of

__all__ = ["Agent", "Game", "Shown", "agent_named", "experiment_of"]
