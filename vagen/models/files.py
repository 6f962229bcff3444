"""Checks from files alone whether a model's path can be loaded."""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from safetensors import SafetensorError, safe_open

from vagen.models import ModelError, first_line
from vagen.models.sources import SMOLVLM, file_of, is_packed
from vagen.models.tiny import TINY_MODELS
from vagen.storage import MANIFEST, verify_directory

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")
IMAGE_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
WEIGHT_INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def check_model(path: str) -> None:
    """Checks a model's path before anything is started or downloaded.

    Accepts any hub id.

    Raises:
        ModelError: There is no such folder, or it is incomplete.
        CorruptArtifact: It is part of a committed folder and was changed since.
    """
    if path in TINY_MODELS:
        return
    if path.startswith(SMOLVLM):
        return check_model(path.removeprefix(SMOLVLM))
    if is_packed(path):
        file_of(path)
        return
    folder = Path(path)
    cache_only_without_hub(path)
    if folder.is_dir():
        parent = folder.absolute().parent
        if (parent / MANIFEST).is_file():
            verify_directory(parent, folder.name)
        missing = missing_files(folder)
        if missing:
            raise ModelError(
                f"{path} is not a complete model directory: it lacks {', '.join(missing)}; "
                "`save_pretrained` of model, tokenizer and image processor writes one"
            )
    elif path.count("/") != 1 or path.startswith(("/", ".", "~")):
        raise ModelError(
            f"there is no model {path!r}: give a model directory, a hub id (owner/name), or one of "
            f"{', '.join(TINY_MODELS)}, gguf:FILE, pip:PACKAGE and smolvlm:SOURCE"
        )


def check_obtainable(path: str) -> None:
    """Checks that the model of a hub id is cached or can be downloaded.

    Downloads only its configuration.

    Raises:
        ModelError: The hub does not have it, does not answer, or requires a token.
    """
    if path in TINY_MODELS or is_packed(path) or Path(path).is_dir():
        return
    cache_only_without_hub(path)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        hf_hub_download(path, "config.json")
    except LocalEntryNotFoundError:
        raise ModelError(
            f"the model {path} is not on this machine and the hub cannot be reached: download it "
            f"where there is a network (`hf download {path}`), or give a model directory"
        ) from None
    except (HfHubHTTPError, ValueError) as error:
        raise ModelError(f"the hub does not give the model {path}: {first_line(error)}") from None


def cache_only_without_hub(path: str) -> None:
    """Restricts `huggingface_hub` to its cache if the hub is unreachable: it would retry for long.

    Does nothing for a model directory, or behind a proxy.
    """
    if path in TINY_MODELS or is_packed(path) or Path(path).is_dir() or getproxies():
        return
    from huggingface_hub import constants

    hub = urlsplit(constants.ENDPOINT)
    try:
        port = hub.port or {"http": 80, "https": 443}[hub.scheme]
        socket.create_connection((hub.hostname or "", port), timeout=5).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True


def missing_files(folder: Path) -> list[str]:
    """Files missing in a model directory; a truncated weight file counts as missing."""
    missing = []
    config_file = folder / "config.json"
    config = None
    if config_file.is_file():
        try:
            config = json.loads(config_file.read_text())
        except ValueError:
            missing.append("a readable config.json")
    else:
        missing.append("config.json")
    missing += _missing_weights(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        missing.append("a tokenizer (tokenizer.json)")
    has_vision = config is not None and "vision_config" in config
    if has_vision and not any((folder / name).is_file() for name in IMAGE_PROCESSOR_FILES):
        missing.append("an image processor (preprocessor_config.json)")
    return missing


def _missing_weights(folder: Path) -> list[str]:
    names = [file.name for file in folder.glob("*.safetensors")]
    names += [file.name for file in folder.glob("pytorch_model*.bin")]
    for index in WEIGHT_INDEX_FILES:
        if (folder / index).is_file():
            shards = set(json.loads((folder / index).read_text())["weight_map"].values())
            absent = sorted(shards - set(names))
            if absent:
                return absent
    if not names:
        return ["weights (model.safetensors)"]
    broken = []
    for name in names:
        if name.endswith(".safetensors"):
            try:
                with safe_open(folder / name, "np"):
                    pass
            except SafetensorError:
                broken.append(f"a whole {name} (it is cut short or damaged)")
    return broken
