"""`vagen play`: an environment for a person, an agent, or both in turns."""

import asyncio
import webbrowser
from argparse import Namespace
from pathlib import Path

from vagen.cli.common import model_path, run_named
from vagen.cli.view import has_display
from vagen.config import ExperimentConfig
from vagen.config.layers import Layers, parse_override
from vagen.envs.registry import ENVIRONMENTS
from vagen.experiment.load import load_experiment, load_infra
from vagen.play import Game, agent_named, experiment_of
from vagen.run import layout

FOLDER = "played"
"""Folder of saved episodes, under the output folder."""


def play(options: Namespace) -> None:
    """Serves the page, or plays in the terminal."""
    target = options.experiment or "FrozenLake"
    run = None if target in ENVIRONMENTS else run_named(target)
    game = Game(_experiment(options, target, run), options.env, options.split)
    name = options.agent or ("expert" if run is None else target)
    infra = load_infra(options.infra, options.infra_overrides)
    agent = agent_named(model_path(name), game, infra)
    outputs = Path(infra.output_dir) / FOLDER
    if options.terminal:
        from vagen.play.terminal import play_here

        asyncio.run(play_here(game, agent, name, options.level, outputs))
        return
    from vagen.play.server import game_app, serve

    address = f"http://{options.host}:{options.port}/#{options.level}"
    print(f"{address}  (Ctrl-C ends it; --terminal plays here)", flush=True)
    if not options.no_open and has_display():
        webbrowser.open(address)
    serve(game_app(game, agent, name, outputs), options.host, options.port)


def _experiment(options: Namespace, target: str, run: Path | None) -> ExperimentConfig:
    """The experiment of a run or of this name, or one with this environment alone."""
    if run is not None:
        return load_experiment(run / layout.EXPERIMENT, options.overrides)
    if target not in ENVIRONMENTS and ":" not in target:
        return load_experiment(target, options.overrides)
    layers = Layers({})
    for text in options.overrides:
        layers.lay(parse_override(text))
    return experiment_of(target, layers.tree)
