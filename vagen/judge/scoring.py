"""Judging the turns of trajectories, as an experiment asks for it."""

from collections.abc import Iterator

from vagen.config.schema import ExperimentConfig
from vagen.envs import make, parse_env_config
from vagen.judge import Judge, make_judge, rules_for
from vagen.rollout.types import Status, Trajectory, Turn


def statements(trajectory: Trajectory) -> Iterator[Turn]:
    """Turns whose statements are judged: those that earned the format reward."""
    if trajectory.status is not Status.ENV_ERROR:
        yield from (turn for turn in trajectory.turns if turn.parsed["format_correct"])


class Scorer:
    """Sets the verdicts and judge rewards of turns, with one judge per environment."""

    def __init__(self, config: ExperimentConfig):
        """Prepares the judges.

        Args:
            config: With resolved environments.
        """
        self.config = config
        enabled = config.judge.use_state_reward
        self._judges = {config_id: self._judge(config_id) for config_id in config.envs if enabled}

    async def score(self, trajectory: Trajectory) -> None:
        """Judges what has no verdict yet, in place; nothing if the experiment has no judge.

        A missing score stays missing: its reward part is None.
        """
        if trajectory.config_id in self._judges:
            for turn in statements(trajectory):
                await self.score_turn(trajectory, turn)

    async def score_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """Judges one turn, unless it has its verdict."""
        if turn.verdict is not None:
            return
        verdict = await self._judges[trajectory.config_id].score(
            env_name=trajectory.env_name,
            observation=turn.parsed["observation"],
            prediction=turn.parsed["prediction"],
            state=turn.state,
            next_state=turn.next_state,
        )
        turn.verdict = {
            "observation": verdict.observation,
            "prediction": verdict.prediction,
            "flags": list(verdict.flags),
        }
        weights = {
            "observation": self.config.judge.observation_weight,
            "prediction": self.config.judge.prediction_weight,
        }
        for part, weight in weights.items():
            value = getattr(verdict, part)
            turn.rewards[f"judge_{part}"] = None if value is None else weight * value

    def _judge(self, config_id: str) -> Judge:
        spec = self.config.envs[config_id]
        env_config = parse_env_config(spec.env_name, spec.env_config)
        env = make(spec.env_name, spec.env_config)
        prompts = {spec.env_name: env.system_prompt()}
        env.close()
        rules = rules_for(spec.env_name, env_config)
        return make_judge(
            self.config.judge,
            rules={} if rules is None else {spec.env_name: rules},
            prompts=prompts if env_config.prompt_detail == "full" else None,
        )
