"""Imports what workers of the distributed engine need but Ray and verl: for `warm_python`."""

from vagen.engines.verl.env_vars import configure

configure(cpu=True)

import accelerate.hooks  # noqa: E402, F401
import aiohttp  # noqa: E402, F401
import datasets  # noqa: E402, F401
import fastapi  # noqa: E402, F401
import hydra  # noqa: E402, F401
import peft.utils.save_and_load  # noqa: E402, F401
import tensordict  # noqa: E402, F401
import torch.distributed.checkpoint.state_dict  # noqa: E402
import torch.distributed.fsdp  # noqa: E402
import torch.distributed.tensor  # noqa: E402, F401
import transformers.models.auto.auto_factory  # noqa: E402
import transformers.models.auto.modeling_auto  # noqa: E402
import transformers.models.auto.processing_auto  # noqa: E402, F401
import uvicorn  # noqa: E402, F401

import vagen.models.loading  # noqa: E402
import vagen.rollout.play  # noqa: E402, F401
