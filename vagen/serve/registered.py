"""A registered model as an MLflow pyfunc model: a conversation in, its answer out.

MLflow executes this file when it loads a model version, so it needs the `vagen` package.
"""

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."


class VagenModel(PythonModel):
    """Answers one conversation per row with the model directory stored as artifact `model`."""

    def load_context(self, context: Any) -> None:
        """Loads weights, tokenizer and image processor."""
        from vagen.models.loading import load_model
        from vagen.serve.model import ServedModel

        self.language_model = load_model(context.artifacts["model"])
        self.served = ServedModel(self.language_model)

    def predict(
        self, context: Any, model_input: pandas.DataFrame, params: dict[str, Any] | None = None
    ) -> list[str]:
        """Answers, one per row.

        Args:
            context: MLflow's context, unused.
            model_input: A row has `messages`, a conversation as in OpenAI's API with pictures as
                data URLs; or `prompt`, the user's text with `<image>` once per picture, and
                optionally `images`, a list of base64 PNG, and `system_prompt`. A column that one
                row has, all need, with an empty list or text for none.
            params: `max_new_tokens`, `temperature` (0 is greedy), `seed`.
        """
        rows: list[dict[Any, Any]] = model_input.to_dict("records")
        # In a separate thread, since the calling notebook or server may run an event loop already.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, self._answer(rows, params or {})).result()

    async def _answer(self, rows: list[dict[Any, Any]], params: dict[str, Any]) -> list[str]:
        from vagen.rollout.types import Sampling

        sampling = Sampling(
            temperature=float(params.get("temperature", 0.0)),
            max_new_tokens=int(params.get("max_new_tokens", 200)),
            seed=int(params.get("seed", 0)),
        )

        async def one(row: dict[str, Any]) -> str:
            prompt = await self.served.prompt(_chat(row))
            return (await self.served.answer(prompt, sampling)).text

        return list(await asyncio.gather(*map(one, rows)))


def _chat(row: dict[str, Any]) -> Any:
    from vagen.envs.images import decode_png
    from vagen.serve.messages import Chat, ChatMessage, read_chat

    messages = _given(row, "messages", ())
    if len(messages):
        return read_chat([ChatMessage.model_validate(message) for message in messages])
    pngs = _given(row, "images", ())
    frames = tuple(decode_png(base64.b64decode(png, validate=True)) for png in pngs)
    system_prompt = str(_given(row, "system_prompt", DEFAULT_SYSTEM_PROMPT))
    return Chat(system_prompt, [{"text": str(row["prompt"]), "images": frames}], [])


def _given(row: dict[str, Any], name: str, default: Any) -> Any:
    """A row's value; tables contain NaN for missing ones."""
    value = row.get(name)
    return default if value is None or isinstance(value, float) else value


set_model(VagenModel())
