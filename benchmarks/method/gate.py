"""What a policy learns to keep in view: a code among noise, asked for at the end.

Of six turns five show something: one of the first five the code (one of eight), the others twenty
words of noise. The answer to each is one token, keep or drop; that to the sixth is one of eight
letters, and right if it is the code's. A small attention model plays it in the package's own
contexts, and learns from the rows with its own estimator and loss. It begins as one that answers
rightly what it sees, guesses what it does not, and tosses a coin for each tag.

Shape legend: R rows, T tokens of the longest, V tokens of the vocabulary.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import describe_machine, header, write_result
from benchmarks.method import report
from vagen.advantage import estimate_advantages
from vagen.envs.base import Observation
from vagen.learning import policy_loss
from vagen.report.curves import COLORS, GRID, INK
from vagen.rollout.contexts import DROPPED, Contexts, context_tokens
from vagen.rollout.conversation import Rendered
from vagen.rollout.types import TokenRow
from vagen.storage import write_whole
from vagen.tracking import paired_seeds

TURNS, CODES, NOISE = 6, 8, 20
EPISODES, MINI_BATCH, HELD_OUT = 128, 64, 512
WARM_EPISODES, WARM_STEPS, ITERATIONS = 2048, 400, 80
LENGTH, UNITS, LR = 128, 32, 1e-3

TAGS = {"keep": 0, "drop": 1}
LETTERS = {letter: 2 + i for i, letter in enumerate("ABCDEFGH")}
ANSWERS = torch.tensor([True] * 2 + [False] * CODES)
"""Of the first ten ids: the tags, which answer all turns but the last."""
WORDS = {word: 10 + i for i, word in enumerate(["begin", "next", "ask", *DROPPED["text"].split()])}
CODE = 10 + len(WORDS)
VOCABULARY = CODE + CODES + 8

KEPT = ("code_kept", "noise_kept")
FILES = "gate"
RESULT = report.ROOT / "benchmarks" / "results" / "method-gate.json"


@dataclass(frozen=True)
class Arm:
    """A context, and what an observation costs that is kept."""

    window: int | None = None
    gate: bool = False
    keep_cost: float = 0.0


ARMS = {
    "concat": Arm(),
    "window 2": Arm(2),
    "window 4": Arm(4),
    "gate": Arm(2, gate=True),
    "gate, cost .01": Arm(2, gate=True, keep_cost=0.01),
    "gate, cost .1": Arm(2, gate=True, keep_cost=0.1),
}


class Renderer:
    """Words as tokens, a mark before each observation."""

    thoughts = None

    def initial(self, system_prompt: str, observation: Observation, *, thought: bool) -> Rendered:
        """Ids of a row's beginning."""
        return Rendered([WORDS["begin"], *_ids(observation)], [])

    def following(self, observation: Observation, *, thought: bool = True) -> Rendered:
        """Ids of an observation after an answer."""
        return Rendered([WORDS["next"], *_ids(observation)], [])

    def rest(self, ids: Sequence[int]) -> None:
        """None: an answer stays whole."""


def _ids(observation: Observation) -> list[int]:
    return [WORDS[w] if w in WORDS else int(w) for w in observation["text"].split()]


class Episode(NamedTuple):
    """As it was played."""

    rows: list[TokenRow]
    rewards: list[float]
    """Of each turn."""
    success: bool
    kept: tuple[float, float]
    """Whether the code was kept, and the share of the noise."""
    label: int
    """The last answer that is right, as far as one can see; else any."""


class Policy(nn.Module):
    """Two layers of causal attention."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.places = nn.Embedding(VOCABULARY, UNITS), nn.Embedding(LENGTH, UNITS)
        layer = nn.TransformerEncoderLayer(
            UNITS, 2, 2 * UNITS, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(UNITS, len(ANSWERS))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def answers(self, ids_RT: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities after each token, [R, T, 10]: of the tags, and of the letters."""
        length = ids_RT.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        seen = self.words(ids_RT) + self.places.weight[:length]
        logits = self.head(self.layers(seen, mask=causal, is_causal=True))
        tags = logits.masked_fill(~ANSWERS, -torch.inf).log_softmax(-1)
        return tags, logits.masked_fill(ANSWERS, -torch.inf).log_softmax(-1)

    def logprobs(self, ids_RT: Tensor) -> Tensor:
        """[R, T] of each token that is an answer, 0 elsewhere."""
        tags, letters = self.answers(ids_RT)
        following = ids_RT[:, 1:]
        found = torch.where((following < 2)[..., None], tags[:, :-1], letters[:, :-1])
        answer = following < len(ANSWERS)
        picked = found.gather(-1, torch.where(answer, following, 2)[..., None])[..., 0]
        return nn.functional.pad(torch.where(answer, picked, 0.0), (1, 0))


def observations(level: Random) -> tuple[list[Observation], int, int]:
    """Of a level's turns; the code, and the turn that shows it."""
    code, place = level.randrange(CODES), level.randrange(TURNS - 1)
    texts = [
        " ".join(str(CODE + CODES + level.randrange(8)) for _ in range(NOISE))
        for _ in range(TURNS - 1)
    ]
    texts[place] = str(CODE + code)
    return [Observation(text=text, images=()) for text in [*texts, "ask"]], code, place


def play(policy: Policy | None, arm: Arm, levels: Sequence[str], draws: Random) -> list[Episode]:
    """An episode of each level; without a policy every answer is tossed for."""
    shown = [observations(Random(level)) for level in levels]
    every = [
        Contexts(level, Renderer(), system_prompt="", window=arm.window, gate=arm.gate)  # type: ignore[arg-type]
        for level in levels
    ]
    said: list[list[int]] = [[] for _ in levels]
    for turn in range(TURNS):
        for contexts, (texts, _, _) in zip(every, shown, strict=True):
            contexts.show(contexts.prompt(texts[turn]), [])
        last = turn == TURNS - 1
        options = torch.full((len(levels), len(ANSWERS)), -torch.inf)
        options[:, ~ANSWERS if last else ANSWERS] = -np.log(CODES if last else 2)
        if policy is not None:
            ids_RT = padded([contexts.row.ids for contexts in every])
            ends = torch.tensor([len(contexts.row.ids) - 1 for contexts in every])
            with torch.no_grad():
                options = policy.answers(ids_RT)[last][torch.arange(len(ends)), ends]
        for contexts, row, own in zip(every, options.exp().tolist(), said, strict=True):
            token = draws.choices(range(len(ANSWERS)), weights=row)[0]
            contexts.answer([token], [float(np.log(row[token]))])
            own.append(token)
            if arm.gate and token == TAGS["drop"]:
                contexts.drop()
    return [
        _episode(arm, contexts, own, *level[1:], draws)
        for contexts, own, level in zip(every, said, shown, strict=True)
    ]


def _episode(
    arm: Arm, contexts: Contexts, said: list[int], code: int, place: int, draws: Random
) -> Episode:
    kept = [float(token == TAGS["keep"]) for token in said[:-1]]
    success, right = said[-1] == 2 + code, 2 + code
    noise = [tag for turn, tag in enumerate(kept) if turn != place]
    visible = CODE + code in contexts.row.ids
    return Episode(
        [row.row() for row in contexts.rows],
        [*(-arm.keep_cost * tag for tag in kept), float(success)],
        success,
        (kept[place], float(np.mean(noise))),
        right if visible else 2 + draws.randrange(CODES),
    )


def padded(rows: Sequence[Any], dtype: torch.dtype = torch.int64) -> Tensor:
    """[R, T] with zeros behind the end of a row."""
    return nn.utils.rnn.pad_sequence([torch.as_tensor(r, dtype=dtype) for r in rows], True)


@cache
def warm_started(window: int | None, gate: bool, seed: int) -> tuple[Policy, dict[str, float]]:
    """One that answers what it sees, and tosses for tags."""
    policy, draws, arm = Policy(seed), Random(f"warm {seed}"), Arm(window, gate)
    levels = [f"warm {seed} {i}" for i in range(WARM_EPISODES)]
    episodes = play(None, arm, levels, draws)
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    for _ in range(WARM_STEPS):
        chosen = draws.sample(episodes, MINI_BATCH)
        ids_RT = padded([episode.rows[-1].input_ids[:-1] for episode in chosen])
        ends = torch.tensor([len(episode.rows[-1].input_ids) - 2 for episode in chosen])
        letters = policy.answers(ids_RT)[1][torch.arange(len(ends)), ends]
        labels = torch.tensor([episode.label for episode in chosen])
        _step(optimizer, nn.functional.nll_loss(letters, labels))
    return policy, evaluate(policy, arm, seed)


def evaluate(policy: Policy, arm: Arm, seed: int) -> dict[str, float]:
    """Means over held-out episodes."""
    return measures(
        play(policy, arm, [f"test {i}" for i in range(HELD_OUT)], Random(f"test {seed}"))
    )


def measures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success, tokens in view per answer, shares kept."""
    tokens = [context_tokens(episode.rows)[0] / TURNS for episode in episodes]
    return {
        "success": float(np.mean([episode.success for episode in episodes])),
        "tokens": float(np.mean(tokens)),
        "code_kept": float(np.mean([episode.kept[0] for episode in episodes])),
        "noise_kept": float(np.mean([episode.kept[1] for episode in episodes])),
    }


def train(arm: Arm, seed: int) -> dict[str, Any]:
    """A training: the held-out measures before and after it, and those of each iteration."""
    start, before = warm_started(arm.window, arm.gate, seed)
    policy = Policy(seed)
    policy.load_state_dict(start.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), LR)
    draws, curve = Random(f"play {seed}"), []
    for iteration in range(ITERATIONS):
        levels = [f"train {seed} {iteration} {i}" for i in range(EPISODES)]
        episodes = play(policy, arm, levels, draws)
        curve.append(measures(episodes))
        for loss in _losses(policy, episodes):
            _step(optimizer, loss)
    after = evaluate(policy, arm, seed)
    return {"before": before, "after": after, "curve": curve}


def _losses(policy: Policy, episodes: Sequence[Episode]) -> Any:
    """The policy loss of each mini batch, with the advantages of the whole batch."""
    rows = [row for episode in episodes for row in episode.rows]
    owners = [i for i, episode in enumerate(episodes) for _ in episode.rows]
    loss_mask = padded([row.loss_mask for row in rows], torch.bool)
    turns = padded([row.turn_index for row in rows])
    earned = torch.tensor([episode.rewards for episode in episodes])[owners]
    advantages, _ = estimate_advantages(
        "reinforce_plus_plus",
        rewards=earned.gather(1, turns.clamp(min=0)) * loss_mask,
        loss_mask=loss_mask,
        attention_mask=padded([np.ones(len(row.input_ids)) for row in rows], torch.bool),
        trajectory_ids=torch.tensor(owners),
        gamma=1.0,
    )
    ids_RT = padded([row.input_ids for row in rows])
    old = padded([row.rollout_logprobs for row in rows], torch.float32)
    order = np.random.default_rng(len(rows)).permutation(len(episodes))
    for chosen in np.split(order, len(order) // MINI_BATCH):
        part = torch.from_numpy(np.isin(owners, chosen))
        logprobs = policy.logprobs(ids_RT[part])
        yield policy_loss(logprobs, old[part], advantages[part], loss_mask[part])[0]


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()


def run(outputs: Path, seed: int) -> None:
    """Every arm of a seed that is not finished."""
    torch.set_num_threads(1)
    for name, arm in ARMS.items():
        path = outputs / FILES / f"{name}-{seed}.json"
        if path.exists():
            continue
        found = {"arm": asdict(arm), **train(arm, seed)}
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(path) as partial:
            partial.write_text(json.dumps(found) + "\n")
        print(name, seed, found["before"], found["after"], flush=True)


def write(outputs: Path, note: str) -> None:
    """From the files of finished arms to the result, the table of `docs/method.md`, the figure."""
    found: dict[str, dict[str, Any]] = {}
    for name in ARMS:
        files = sorted((outputs / FILES).glob(f"{name}-[0-9]*.json"))
        rows = [json.loads(path.read_text()) for path in files]
        if not rows:
            continue
        found[name] = {
            "arm": rows[0]["arm"],
            "seeds": [int(path.stem.rpartition("-")[2]) for path in files],
            **{
                part: {key: [row[part][key] for row in rows] for key in rows[0][part]}
                for part in ("before", "after")
            },
            "mean_curve": {
                key: np.mean([[c[key] for c in row["curve"]] for row in rows], 0).round(4).tolist()
                for key in rows[0]["curve"][0]
            },
        }
    contrasts = {
        f"{name} minus {other}": paired_seeds(
            found[other]["after"]["success"], found[name]["after"]["success"]
        )._asdict()
        for name in found
        for other in ("concat", "window 4")
        if found[name]["arm"]["gate"] and found.get(other, {}).get("seeds") == found[name]["seeds"]
    }
    settings = {"episodes": EPISODES, "iterations": ITERATIONS, "held_out": HELD_OUT}
    write_result(
        RESULT,
        {
            **header(note),
            "machine": describe_machine(),
            "settings": settings,
            "arms": found,
            "contrasts": contrasts,
        },
    )
    report.write_tables({FILES: _table(found)})
    _draw(found, report.ROOT / "docs" / "images" / "method-gate.png")
    print(RESULT)


def _table(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| context | success, before | after | tokens in view | code kept | noise kept |",
        "|---" * 6 + "|",
    ]
    for name, row in found.items():
        after = row["after"]
        success = np.array(after["success"])
        cells = [
            name,
            f"{np.mean(row['before']['success']):.3f}",
            f"{success.mean():.3f} ({success.min():.2f} to {success.max():.2f})",
            f"{np.mean(after['tokens']):.1f}",
            *(f"{np.mean(after[k]):.2f}" if row["arm"]["gate"] else "" for k in KEPT),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Success against tokens in view, a mark per seed; what is kept, by iteration."""
    figure = report.new_figure(9.6, 3.6)
    left, right = figure.subplots(1, 2)
    for (name, row), color in zip(found.items(), COLORS, strict=False):
        left.scatter(row["after"]["tokens"], row["after"]["success"], s=22, color=color, label=name)
        if row["arm"]["gate"]:
            for key, style in zip(KEPT, ("-", "--"), strict=True):
                label = f"{name}: {key.removesuffix('_kept')}"
                right.plot(row["mean_curve"][key], style, color=color, lw=1.4, label=label)
    left.set_xlabel("tokens in view, mean over answers")
    left.set_ylabel("success on held-out levels")
    right.set_xlabel("iteration")
    right.set_ylabel("share of observations kept")
    for axes in (left, right):
        axes.set_ylim(0.0, 1.03)
        axes.grid(color=GRID, lw=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, edgecolor=GRID)
    figure.suptitle("A code among noise, by what stays in view", color=INK)
    report.save(figure, path)
