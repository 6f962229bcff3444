"""TRL's side: `GRPOTrainer` plays the task by `environment_factory`, in its own environment.

    python -m benchmarks.trl.their_side MODEL --turns 5 --iterations 6 --batch 32 --beta 0

To TRL, the policy's text (`<answer>Right</answer>` and what stands before it) is the argument
of a tool call. The last line printed is JSON: when the first iteration began and what each took.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from datasets import Dataset
from PIL import Image
from transformers import AutoProcessor, AutoTokenizer, Qwen3VLForConditionalGeneration
from trl import GRPOConfig, GRPOTrainer

from benchmarks.trl.task import EndlessFrozenLake
from vagen.envs.base import IMAGE_PLACEHOLDER, Observation
from vagen.models.processor import load_processor

GROUP = 8
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ 'user' if message['role'] == 'tool' else message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] == 'text' -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- for call in message.get('tool_calls') or [] -%}
{{ call['function']['name'] }} {{ call['function']['arguments'] }}
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""
"""The tiny model's own template, which also writes what TRL looks for: tool calls and results."""


def parts(observation: Observation) -> list[dict[str, Any]]:
    """An observation as the parts of a chat message."""
    before, after = observation["text"].split(IMAGE_PLACEHOLDER)
    picture = {"type": "image", "image": Image.fromarray(observation["images"][0])}
    texts = [[{"type": "text", "text": text}] if text else [] for text in (before, after)]
    return [*texts[0], picture, *texts[1]]


class Lake:
    """The task as TRL wants an environment: its public methods are the agent's tools."""

    config: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self._env = EndlessFrozenLake(self.config)
        self._reward = 0.0

    def reset(self, level: int, **_: Any) -> list[dict[str, Any]]:
        """Loads a level."""
        self._reward = 0.0
        return parts(self._env.reset(seed=level)[0])

    def step(self, response: str) -> list[dict[str, Any]]:
        """Moves the player.

        Args:
            response: The whole answer.
        """
        observation, reward, *_ = self._env.step(response)
        self._reward += float(reward)
        return parts(observation)

    def get_reward(self) -> float:
        """Sum of the rewards of the turns."""
        return self._reward


class Clock(transformers.TrainerCallback):
    """When the first iteration began, and the seconds of each."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:  # noqa: D102
        self.began.append(time.time())

    def on_step_end(self, *_: Any, **__: Any) -> None:  # noqa: D102
        self.seconds.append(time.time() - self.began[-1])


def processor_of(model: Path) -> Any:
    """The model's processor; each of its answers is read as one call of `step`."""
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    processor = AutoProcessor.from_pretrained(model, tokenizer=tokenizer)
    processor.tokenizer = tokenizer
    processor.chat_template = tokenizer.chat_template = TEMPLATE

    def parse_response(ids: list[int], **_: Any) -> dict[str, Any]:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        function = {"name": "step", "arguments": {"response": text}}
        calls = [{"type": "function", "function": function}]
        return {"role": "assistant", "content": text, "tool_calls": calls}

    tokenizer.response_schema = {}
    tokenizer.parse_response = parse_response
    return processor


def main() -> None:
    """Trains and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--batch", type=int, default=128, help="rows of a forward pass")
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--env-config", type=json.loads, default={})
    parser.add_argument("--answer", type=int, default=48, help="most tokens of an answer")
    options = parser.parse_args()
    Lake.config = options.env_config
    system = EndlessFrozenLake(options.env_config).system_prompt()
    levels = 128 // GROUP * options.iterations
    data = Dataset.from_list(
        [
            {
                "prompt": [
                    {"role": "system", "content": [{"type": "text", "text": system}]},
                    {"role": "user", "content": []},
                ],
                "level": level,
            }
            for level in range(levels)
        ]
    )
    clock = Clock()
    trainer = GRPOTrainer(
        model=Qwen3VLForConditionalGeneration.from_pretrained(options.model, dtype=torch.float32),
        processing_class=processor_of(options.model),
        args=GRPOConfig(
            output_dir=str(options.model.parent / "trl-out"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=options.batch,
            gradient_accumulation_steps=128 // options.batch,
            num_generations=GROUP,
            max_completion_length=options.answer if options.turns == 1 else 640,
            # VAGEN never samples what stands for pictures or the vocabulary's unused end either.
            generation_kwargs={
                "max_new_tokens": options.answer,
                "suppress_tokens": load_processor(options.model).banned_ids,
            },
            max_tool_calling_iterations=options.turns - 1,
            max_steps=options.iterations,
            beta=options.beta,
            learning_rate=1.2e-4,
            temperature=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            shuffle_dataset=False,
            disable_tqdm=True,
        ),
        train_dataset=data,
        environment_factory=Lake,
        callbacks=[clock],
    )
    trainer.train()
    history = [log for log in trainer.state.log_history if "completions/mean_length" in log]
    result = {
        "first": clock.began[0],
        "seconds": clock.seconds,
        "sampled_tokens": [round(128 * log["completions/mean_length"]) for log in history],
        "reward": [log["reward"] for log in history],
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
