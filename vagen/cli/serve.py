"""`vagen serve`: a model or a run as an OpenAI-compatible server."""

import os
import re
import shlex
import sys
from argparse import Namespace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vagen.cli.common import run_named
from vagen.cli.main import UsageError
from vagen.config import ExperimentConfig, InfraConfig
from vagen.config.errors import validate
from vagen.experiment.load import load_infra
from vagen.models.sources import directory_of
from vagen.run import layout

if TYPE_CHECKING:
    from vagen.serve.app import Server, ServeSettings


def serve(options: Namespace) -> None:
    """Loads a model and serves it until it is interrupted.

    Raises:
        ConfigError: An option, or the infra, cannot be used.
        ModelError: The model cannot be loaded.
        TokenError: A token cannot be used, or everyone who reaches the address could ask.
        WorkerError: One of several processes cannot serve.
    """
    if options.experiment or options.overrides:
        raise UsageError(
            f"serve takes infra.key=value alone, not {options.experiment or options.overrides[0]}"
        )
    from vagen.serve.app import ServeSettings, make_app
    from vagen.service.limits import check_open, listen

    given = {name: getattr(options, name, None) for name in ServeSettings.model_fields}
    settings = validate(ServeSettings, {k: v for k, v in given.items() if v is not None})
    token = os.environ.get(options.token_env, "").strip() or None
    if settings.tokens_file is None and token is None:
        check_open(settings, f"set {options.token_env}, or give --tokens-file")

    model, run_dir, experiment = options.model, run_named(options.model), None
    infra = load_infra(
        options.infra or (None if run_dir is None else run_dir / layout.INFRA),
        options.infra_overrides,
    )
    name = Path(model).name
    if run_dir is not None:
        from vagen.run.run import Run

        run = Run.open(run_dir)
        name, model = run_dir.name, run.newest_policy()
        experiment = run.experiment
    elif model.startswith("models:/"):
        from vagen.tracking import default_uri, fetch_registered

        name = re.split("[/@]", model.removeprefix("models:/"))[0]
        uri = infra.mlflow_tracking_uri or default_uri(Path(infra.output_dir))
        model = str(fetch_registered(model, uri=uri))

    from vagen.models.files import check_model
    from vagen.models.tiny import TINY_MODELS

    if model in TINY_MODELS:
        raise UsageError(f"{model} is made for an experiment: train one, and serve the run")
    name = options.name or name
    if options.vllm is not None:
        become_vllm(str(model), name, infra, settings, token, options.vllm)
    make = partial(make_server, str(model), name, settings, token, infra, experiment)
    if settings.workers == 1:
        app = make_app(make())
    else:
        from vagen.serve.workers import Workers, make_front

        check_model(str(model))
        app = make_front(Workers(make, settings.workers), settings, token)
    listen(settings, app, name)


def make_server(
    model: str,
    name: str,
    settings: "ServeSettings",
    token: str | None,
    infra: InfraConfig,
    run: ExperimentConfig | None,
    worker: int | None = None,
) -> "Server":
    """Loads a model, and the agent of a run; the `worker` has its share of the GPUs or threads.

    Raises:
        ModelError: The model cannot be loaded.
        ConfigError: The run's agent cannot be served.
    """
    import torch

    from vagen.engines.make import device_of
    from vagen.serve.app import Server
    from vagen.serve.model import load_served
    from vagen.service.pool import core_count

    if worker is not None:
        device, threads = device_of(infra), max(1, core_count() // settings.workers)
        if device.type == "cuda" and device.index is None:
            device = f"cuda:{worker % torch.cuda.device_count()}"
        update = {"threads": infra.threads or threads, "device": str(device)}
        infra = infra.model_copy(update=update)
    served = load_served(
        model,
        infra,
        rows=settings.rows,
        context=settings.context,
        wait_seconds=settings.wait_seconds,
    )
    return Server(served, name, settings, token, run, worker)


def become_vllm(
    model: str,
    name: str,
    infra: InfraConfig,
    settings: "ServeSettings",
    token: str | None,
    more: str,
) -> NoReturn:
    """Replaces this process by vLLM's OpenAI-compatible server.

    Args:
        model: A model directory or hub id, or another source of `vagen.models`.
        name: Its name in requests.
        infra: Its `dtype`.
        settings: Address and context.
        token: The API key; None for none.
        more: Further arguments of vLLM.

    Raises:
        UsageError: vLLM is not installed, or there is a file of tokens.
    """
    if find_spec("vllm") is None:
        raise UsageError("vLLM is not installed (constraints/gpu.txt); leave out --vllm")
    if settings.tokens_file is not None:
        raise UsageError("vLLM knows one token, of VAGEN_SERVE_TOKEN: leave out --tokens-file")
    words = ["--model", directory_of(model), "--served-model-name", name]
    words += ["--host", settings.host, "--port", str(settings.port), "--dtype", infra.dtype]
    words += ["--max-model-len", str(settings.context)] if settings.context else []
    if token is not None:
        os.environ["VLLM_API_KEY"] = token
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    os.execv(sys.executable, [*server, *words, *shlex.split(more)])
