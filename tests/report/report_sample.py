"""Trajectory batches for the report's tests: real environments, played by a noisy expert.

Token ids come from a small vocabulary of words; log-probs, values and advantages are drawn.
"""

import re
from dataclasses import replace

import numpy as np

from vagen.envs import env_config_digest, make
from vagen.envs.images import image_digest, png_bytes
from vagen.envs.parsing import ParsedResponse
from vagen.rollout.batch import TrajectoryBatch
from vagen.rollout.types import (
    CONTEXT,
    Status,
    TokenRow,
    Trajectory,
    Turn,
    TurnMetrics,
    TurnRewards,
    Verdict,
)

ATTACKS = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!-- <script> --> ]]> &lt;b&gt; \u202egnirts desrever\u202c \x1b[31m \u2028 end",
    '<observation><div style="position:fixed;inset:0">covers the page</div></observation>',
)
PIECES = re.compile(r"<\|[a-z_]+\|>|</?[a-z]+>|\w+|\n|[^\w\s]|\s", re.UNICODE)


class Vocabulary(list[str]):
    """Pieces by id, in order of first use, with a tokenizer's `decode`."""

    def __init__(self):
        self.index: dict[str, int] = {}

    def ids(self, text: str) -> list[int]:
        found = []
        for piece in PIECES.findall(text):
            if piece not in self.index:
                self.index[piece] = len(self)
                self.append(piece)
            found.append(self.index[piece])
        return found

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(self[i] for i in ids)


def sample_batch(
    count: int = 12,
    *,
    env_name: str = "FrozenLake",
    env_config: dict | None = None,
    max_turns: int = 4,
    kind: str = "advantage",
    seed: int = 0,
    attacks: bool = False,
    judged: bool = True,
) -> tuple[TrajectoryBatch, list[str]]:
    """A batch and the text of its token ids."""
    config = {"render_mode": "vision", "prompt_format": "grounding_worldmodeling"}
    config |= {"prompt_detail": "brief", **(env_config or {})}
    rng = np.random.default_rng(seed)
    vocabulary, images = Vocabulary(), {}
    env = make(env_name, config)
    digest = env_config_digest(env_name, config)
    trajectories = []
    for index in range(count):
        observation, info = env.reset(seed=1000 * seed + index)
        row = _RowBuilder(vocabulary, rng)
        row.given(f"<|im_start|>system\n{env.system_prompt()}<|im_end|>\n", CONTEXT)
        turns, terminated, truncated, success = [], False, False, False
        while not (terminated or truncated):
            frames = row.observation(observation, len(turns), images)
            state = env.state()
            response = _response(env, rng, ATTACKS[index % len(ATTACKS)] if attacks else None)
            row.sampled(response + "<|im_end|>", len(turns))
            before = observation["text"]
            observation, _, terminated, truncated, info = env.step(response)
            success = bool(info["success"])
            turns.append(
                Turn(
                    trajectory_id=f"{env_name}-{index:04d}",
                    turn_index=len(turns),
                    response_text=response,
                    parsed=ParsedResponse.from_dict(info["parsed"]),
                    rewards=TurnRewards(**info["rewards"]),
                    metrics=TurnMetrics(**info["metrics"]),
                    state=state,
                    next_state=info["state"],
                    observation_text=before,
                    images=frames,
                )
            )
            if judged and rng.random() < 0.85:
                _judge(turns[-1], rng)
            truncated = not terminated and (truncated or len(turns) >= max_turns)
        if truncated:
            row.observation(observation, len(turns), images)
        failed = rng.random() < 0.04
        trajectories.append(
            Trajectory(
                trajectory_id=f"{env_name}-{index:04d}",
                group_id=f"{env_name}-group-{index // 4:04d}",
                config_id=env_name.lower(),
                env_name=env_name,
                env_config_digest=digest,
                seed=1000 * seed + index,
                level_hash=info.get("level_hash", image_digest(str(env.state()).encode())),
                terminated=terminated and not failed,
                truncated=truncated and not failed,
                success=success and not failed,
                status=Status.ENV_ERROR if failed else Status.OK,
                score=0.0 if failed else sum(t.rewards.env + t.rewards.format for t in turns),
                turns=turns,
                rows=[row.build(f"{env_name}-{index:04d}", columns=kind == "advantage")],
                error="TimeoutError: the simulator did not answer" if failed else None,
            )
        )
    batch = TrajectoryBatch(
        trajectories=trajectories,
        images=images,
        policy_version="5f2c9a" * 8,
        config_digest="c0ffee" * 10,
        kind=kind,
        iteration=12,
    )
    return batch, vocabulary


def sample_history(iterations: int = 40, seed: int = 0, final: float = 0.72) -> list[dict]:
    """Rows of metrics such as a run that learns keeps."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(iterations):
        progress = 1 - np.exp(-2.5 * i / iterations)
        success = 0.38 + (final - 0.38) * progress + rng.normal(0, 0.03)
        row = {
            "iteration": i,
            "train/success": float(np.clip(success, 0, 1)),
            "train/score": float(1.2 * success),
            "train/turns": float(4.0 - progress),
            "train/format_correct": float(1 - 0.3 * np.exp(-i / 5)),
            "train/action_is_valid": float(1 - 0.2 * np.exp(-i / 5)),
            "train/truncated": float(np.clip(1 - success, 0, 1)),
            "judge/observation": float(0.6 + 0.3 * progress),
            "judge/flagged": float(0.1 * np.exp(-i / 5)),
            "actor/grad_norm": float(abs(rng.normal(0.4, 0.1))),
            "critic/rewards/mean": float(1.7 * success + rng.normal(0, 0.02)),
            "actor/update_kl": float(abs(rng.normal(0.004, 0.002))),
            "actor/entropy": float(0.9 - 0.5 * progress + rng.normal(0, 0.02)),
            "actor/pg_clipfrac": float(abs(rng.normal(0.05, 0.02))),
            "critic/loss": float(0.5 * np.exp(-i / 10) + abs(rng.normal(0.05, 0.01))),
            "critic/vf_clipfrac": float(abs(rng.normal(0.02, 0.01))),
            "critic/vf_explained_var": float(0.7 * progress + rng.normal(0, 0.03)),
            "timing_s/rollout": float(5.5 + rng.normal(0, 0.3)),
            "timing_s/judge": 0.05,
            "timing_s/advantage": float(1.4 + rng.normal(0, 0.1)),
            "timing_s/update": float(4.0 + rng.normal(0, 0.2)),
        }
        if i % 10 == 9:
            row["val/format_correct"] = 0.9
            row["val/success"] = float(np.clip(success + rng.normal(0, 0.02), 0, 1))
        rows.append(row)
    return rows


def _response(env, rng: np.random.Generator, attack: str | None) -> str:
    if attack is not None:
        return attack
    response, draw = env.expert_response(), rng.random()
    if draw < 0.05:
        return response.replace("</answer>", "")
    if draw < 0.4:
        action = str(rng.choice(["Left", "Down", "Right", "Up"]))
        return re.sub(r"<answer>.*</answer>", f"<answer>{action}</answer>", response)
    return response


def _judge(turn: Turn, rng: np.random.Generator) -> None:
    scores = [None if rng.random() < 0.1 else float(rng.choice([1.0, 0.5, 0.0])) for _ in range(2)]
    flags = ("observation:contradiction",) if scores[0] is None else ()
    turn.verdict = Verdict(*scores, flags)
    seen, foreseen = (None if score is None else 0.5 * score for score in scores)
    turn.rewards = replace(turn.rewards, judge_observation=seen, judge_prediction=foreseen)


class _RowBuilder:
    """Lays the pieces of a conversation end to end."""

    def __init__(self, vocabulary: Vocabulary, rng: np.random.Generator):
        self.vocabulary, self.rng = vocabulary, rng
        self.ids, self.mask, self.turns, self.images = [], [], [], []

    def given(self, text: str, turn: int) -> None:
        self._extend(text, turn, False)

    def sampled(self, text: str, turn: int) -> None:
        self._extend(text, turn, True)

    def observation(self, observation, turn: int, images: dict[str, bytes]) -> list[str]:
        digests = []
        for image in observation["images"]:
            png = png_bytes(image)
            digests.append(image_digest(png))
            images[digests[-1]] = png
        self.images += digests
        pads = "<|vision_start|>" + "<|image_pad|>" * 16 + "<|vision_end|>"
        text = observation["text"].replace("<image>", pads)
        self.given(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", turn)
        return digests

    def _extend(self, text: str, turn: int, sampled: bool) -> None:
        ids = self.vocabulary.ids(text)
        self.ids += ids
        self.mask += [sampled] * len(ids)
        self.turns += [turn] * len(ids)

    def build(self, trajectory_id: str, *, columns: bool) -> TokenRow:
        mask = np.array(self.mask, dtype=np.bool_)
        size = len(mask)

        def drawn(values) -> np.ndarray:
            return np.where(mask, values, 0).astype(np.float32)

        logprobs = drawn(-self.rng.exponential(0.3, size))
        row = TokenRow(
            trajectory_id=trajectory_id,
            row_index=0,
            input_ids=np.array(self.ids, dtype=np.int32),
            loss_mask=mask,
            turn_index=np.array(self.turns, dtype=np.int16),
            rollout_logprobs=logprobs,
            images=self.images,
        )
        if columns:
            row.columns = {
                "old_logprobs": drawn(logprobs + self.rng.normal(0, 1e-5, size)),
                "ref_logprobs": drawn(logprobs + self.rng.normal(0, 0.1, size)),
                "values": drawn(self.rng.normal(0.6, 0.2, size)),
                "rewards": drawn(np.where(self.rng.random(size) < 0.05, 0.5, 0)),
                "advantages": drawn(np.cumsum(self.rng.normal(0, 0.3, size)) % 4 - 2),
                "returns": drawn(self.rng.normal(0.7, 0.3, size)),
            }
        return row
