"""A registered model as an MLflow pyfunc model: prompt and pictures in, response out.

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
    """Responds to one user message per row with the model directory stored as artifact `model`."""

    def load_context(self, context: Any) -> None:
        """Loads weights, tokenizer and image processor."""
        from vagen.models.loading import load_model

        self.language_model = load_model(context.artifacts["model"])

    def predict(
        self, context: Any, model_input: pandas.DataFrame, params: dict[str, Any] | None = None
    ) -> list[str]:
        """Responses, one per row.

        Args:
            context: MLflow's context, unused.
            model_input: A row has `prompt`, the user's text with `<image>` once per picture, and
                optionally `images`, a list of base64 PNG, and `system_prompt`. If one row has
                `images`, all need it, with an empty list for none.
            params: `max_new_tokens`, `temperature` (0 is greedy), `seed`.
        """
        rows: list[dict[Any, Any]] = model_input.to_dict("records")
        # In a separate thread, since the calling notebook or server may run an event loop already.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, self._answer(rows, params or {})).result()

    async def _answer(self, rows: list[dict[Any, Any]], params: dict[str, Any]) -> list[str]:
        from vagen.engines.local.generation import LocalPolicy
        from vagen.rollout.types import Sampling

        policy = LocalPolicy(self.language_model, slots=max(1, len(rows)))
        sampling = Sampling(
            temperature=float(params.get("temperature", 0.0)),
            max_new_tokens=int(params.get("max_new_tokens", 200)),
            seed=int(params.get("seed", 0)),
        )
        tasks = [self._row(policy, f"row-{i}", row, sampling) for i, row in enumerate(rows)]
        return list(await asyncio.gather(*tasks))

    async def _row(self, policy: Any, name: str, row: dict[str, Any], sampling: Any) -> str:
        from vagen.envs.images import decode_png
        from vagen.rollout.conversation import ChatRenderer

        pngs = _given(row, "images", ())
        frames = tuple(decode_png(base64.b64decode(png, validate=True)) for png in pngs)
        renderer = ChatRenderer(self.language_model.processor)
        prompt = renderer.initial(
            str(_given(row, "system_prompt", DEFAULT_SYSTEM_PROMPT)),
            {"text": str(row["prompt"]), "images": frames},
        )
        generation = await policy.generate(
            request_id=name, prompt_ids=prompt.ids, images=prompt.images, sampling=sampling
        )
        return renderer.text(generation.ids)


def _given(row: dict[str, Any], name: str, default: Any) -> Any:
    """A row's value; tables contain NaN for missing ones."""
    value = row.get(name)
    return default if value is None or isinstance(value, float) else value


set_model(VagenModel())
