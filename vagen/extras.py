"""Libraries that only some commands need, and the extra of the package that installs each.

The core of `pip install vagen` trains on a laptop. Any module may import another library where it
is used; the command line says which extra has it if it is missing.
"""

EXTRAS = {
    "aiohttp": "service",
    "boto3": "s3",
    "botocore": "s3",
    "fastapi": "service",
    "inspect_ai": "inspect",
    "kfp": "kubernetes",
    "kubernetes": "kubernetes",
    "litellm": "litellm",
    "mani_skill": "maniskill",
    "miniworld": "envs",
    "mujoco": "envs",
    "openenv": "openenv",
    "optuna": "sweep",
    "playwright": "envs",
    "prometheus_client": "service",
    "psycopg2": "server",
    "ray": "verl",
    "resvg_py": "envs",
    "skimage": "envs",
    "tensorboard": "tensorboard",
    "uvicorn": "service",
    "verifiers": "verifiers",
    "verl": "verl",
    "wandb": "wandb",
    "websockets": "openenv",
}
"""Extra by name of the imported module."""


def advice(error: BaseException) -> str | None:
    """How to install the library that could not be imported; None for other errors.

    >>> advice(ModuleNotFoundError("No module named 'kfp'", name="kfp.dsl"))
    "kfp is not installed: pip install 'vagen[kubernetes]'"
    """
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or name not in EXTRAS:
        return None
    return f"{name} is not installed: pip install 'vagen[{EXTRAS[name]}]'"
