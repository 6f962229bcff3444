"""One step off: the next iteration is played while this one's update runs."""

from concurrent.futures import Future
from typing import TYPE_CHECKING

from vagen.engines.base import Engine
from vagen.stages.rollout import Played, play_iteration

if TYPE_CHECKING:
    from vagen.stages.run import Run


class Ahead:
    """The episodes of `iteration`, being played with the weights that the engine has now."""

    def __init__(self, run: "Run", engine: Engine, iteration: int):
        """Starts playing; returns once the weights may change.

        Args:
            run: The run.
            engine: Can play while it learns.
            iteration: Number of the iteration to be played.
        """
        self.iteration = iteration
        self._future: Future[Played] = engine.aside(
            lambda play: play_iteration(run, play, iteration)
        )

    def result(self) -> Played:
        """Waits for the episodes."""
        return self._future.result()
