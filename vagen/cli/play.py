"""`vagen play`: an environment for a person, an agent, or both in turns."""

import asyncio
import webbrowser
from argparse import Namespace
from pathlib import Path

from vagen.cli.view import has_display
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.layers import Layers, parse_override
from vagen.envs.registry import ENVIRONMENTS
from vagen.experiment.load import load_experiment
from vagen.play import Game, agent_named, experiment_of

FOLDER = "played"
"""Of saved episodes, under the output folder."""


def play(options: Namespace) -> None:
    """Serves the page, or plays in the terminal."""
    game = Game(_experiment(options), options.env, options.split)
    agent = agent_named(options.agent, game)
    outputs = Path(InfraConfig().output_dir) / FOLDER
    if options.terminal:
        from vagen.play.terminal import play_here

        asyncio.run(play_here(game, agent, options.agent, options.level, outputs))
        return
    from vagen.play.server import game_app, serve

    address = f"http://{options.host}:{options.port}/#{options.level}"
    print(f"{address}  (Ctrl-C ends it; --terminal plays here)", flush=True)
    if not options.no_open and has_display():
        webbrowser.open(address)
    serve(game_app(game, agent, options.agent, outputs), options.host, options.port)


def _experiment(options: Namespace) -> ExperimentConfig:
    """That of this name, or one with this environment alone."""
    name = options.experiment or "FrozenLake"
    if name not in ENVIRONMENTS and ":" not in name:
        return load_experiment(name, options.overrides)
    layers = Layers({})
    for text in options.overrides:
        layers.lay(parse_override(text))
    return experiment_of(name, layers.tree)
