"""FrozenLake in which every episode has as many turns as it is given, so that work is equal."""

from vagen.envs.frozenlake.env import FrozenLakeEnv


class EndlessFrozenLake(FrozenLakeEnv):
    """FrozenLake that neither a hole nor the target ends."""

    def _move(self, action: str) -> tuple[float, bool]:
        reward, _ = super()._move(action)
        return reward, False
