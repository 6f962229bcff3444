"""Checkpoints of the distributed engine.

`policy/` is an ordinary model directory with all weights of the policy. `actor/` and `critic/` hold
the training state in verl's sharded format: each rank has files of weights, optimizer moments and
random state, named by rank and number of ranks. All nodes must see the folder. The reference and
bases under adapters are not saved, since they do not change.

A rank's file holds its shards of tensors that are split along the first dimension like
`torch.chunk`. A checkpoint can be loaded with any number of ranks: each reads the rows it needs
from memory-mapped files.

A rank copies its state to host memory; `RankWriter` writes and hashes the copies in threads while
the rank continues. A checkpoint is complete when every rank has confirmed it.

The files are pickles. They are loaded with `weights_only`, which runs no code from the file; the
stages also verify a checkpoint's digests before they load it.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
from verl.utils.device import get_device_id, get_torch_device

from vagen.models.loading import save_processor, tied
from vagen.models.lora import merged_weights
from vagen.models.processor import Processor
from vagen.storage import FileEntry, StorageError, write_files

POLICY, ACTOR, CRITIC = "policy", "actor", "critic"
"""Folders of a checkpoint."""
PARTS = ("model", "optim", "extra_state")
"""Kinds of a rank's files."""


Written = tuple[dict[str, FileEntry] | None, OSError | None]
"""Digests of the files written since the last call; None until all are. Or the error."""


class RankWriter:
    """Writes a rank's checkpoint files in threads, one checkpoint at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(len(PARTS) * 2 + 1)
        self._begun: list[Future[dict[str, FileEntry]]] = []

    def begin(self, directory: Path, name: str, write: Callable[[Path], None]) -> None:
        """Starts to write a file or folder `name` of the checkpoint in `directory`."""
        self._begun.append(self._threads.submit(write_files, directory, {name: write}))

    def written(self) -> Written:
        """Digests of all files of the checkpoint if they are written; does not wait.

        Raises:
            Exception: Writing failed for a reason other than the disk.
        """
        if not all(future.done() for future in self._begun):
            return None, None
        begun, self._begun = self._begun, []
        entries: dict[str, FileEntry] = {}
        try:
            for future in begun:
                entries |= future.result()
        except OSError as error:
            return None, error
        return entries, None


WRITER = RankWriter()
"""The writer of this process, which is one rank of every network."""


def shard_name(part: str, rank: int, ranks: int) -> str:
    """File name of a rank's shard, as verl names it."""
    return f"{part}_world_size_{ranks}_rank_{rank}.pt"


def check_shards(folder: Path, ranks: int | None = None) -> int:
    """Number of ranks that wrote a network's files; checks that all files exist.

    Args:
        folder: `actor` or `critic` of a checkpoint.
        ranks: Expected number; None infers it.

    Raises:
        StorageError: There are no files, or a rank's file is missing.
    """
    if ranks is None:
        found = list(folder.glob("model_world_size_*_rank_0.pt"))
        if len(found) != 1:
            raise StorageError(
                f"{folder} holds no weights that ranks of the distributed engine wrote: give a "
                "checkpoint of this engine"
            )
        ranks = int(found[0].stem.split("_")[3])
    for rank in range(ranks):
        for part in PARTS:
            if not (folder / shard_name(part, rank, ranks)).is_file():
                raise StorageError(
                    f"{folder} lacks {shard_name(part, rank, ranks)}: choose an `output_dir` that "
                    "all nodes share"
                )
    return ranks


class ShardedState(BaseCheckpointManager):
    """Writes and reads a network's training state; replaces verl's checkpoint manager.

    verl's requires the same number of ranks and omits a value head on adapters.
    """

    @staticmethod
    def get_rng_state() -> dict[str, Any]:
        """verl's random state, with numpy's array as a list: only plain values can be loaded."""
        state = BaseCheckpointManager.get_rng_state()
        kind, keys, *others = state["numpy"]
        return state | {"numpy": (kind, keys.tolist(), *others)}

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Copies this rank's state and starts to write it."""
        folder = Path(local_path)
        folder.mkdir(parents=True, exist_ok=True)
        content = (
            _learnt(self.model),
            self.optimizer.state_dict(),
            {"lr_scheduler": self.lr_scheduler.state_dict(), "rng": self.get_rng_state()},
        )
        for part, state in zip(PARTS, content, strict=True):
            name = shard_name(part, self.rank, self.world_size)
            WRITER.begin(folder.parent, f"{folder.name}/{name}", partial(_save, to_host(state)))

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Restores a checkpoint of any number of ranks.

        Random state is restored only if the number of ranks is the same.

        Raises:
            StorageError: A rank's file is missing.
            ValueError: The files belong to another network.
        """
        folder = Path(local_path)
        ranks = check_shards(folder)
        self._load_weights(_read_all(folder, "model", ranks), folder)
        self._load_moments([file["state"] for file in _read_all(folder, "optim", ranks)])
        if ranks == self.world_size:
            self.load_rng_state(_read(folder, "extra_state", self.rank, ranks)["rng"])

    def _load_weights(self, files: list[dict[str, Tensor]], folder: Path) -> None:
        own = _learnt(self.model)
        if own.keys() != files[0].keys():
            odd = min(own.keys() ^ files[0].keys())
            raise ValueError(f"{folder} is of another network: {odd} is not in both")
        for name, weight in own.items():
            _fill(weight, [file[name] for file in files], name)

    def _load_moments(self, files: list[dict[int, dict[str, Tensor]]]) -> None:
        """Loads moments only: learning rate, decay and betas come from the experiment."""
        learnt = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.state.clear()
        for index, state in files[0].items():
            moments = {}
            for key, value in state.items():
                split = isinstance(value, DTensor)
                moments[key] = torch.empty_like(learnt[index].detach() if split else value)
                _fill(moments[key], [file[index][key] for file in files], f"{index}|{key}")
            self.optimizer.state[learnt[index]] = moments


def export_policy(
    module: Any, source: str, processor: Processor, directory: Path, rank: int
) -> None:
    """Writes a model directory with all weights in float32, adapters merged.

    Collective over ranks, which gather one weight after the other; the first starts to write them.

    Args:
        module: The sharded policy.
        source: Model directory that it was loaded from.
        processor: Processor of the policy.
        directory: Output folder, created here.
        rank: Rank of this process.
    """
    model = module.get_base_model() if hasattr(module, "peft_config") else module
    state = {}
    for name, weight in merged_weights(model, whole):
        if rank == 0:
            state[name] = _begin_copy(weight)
    if rank == 0:
        get_torch_device().synchronize()
        save_processor(directory, processor)
        state = tied(model, state)

        def write(path: Path) -> None:
            model.save_pretrained(path, state_dict=state)
            # The module's config also names the attention kernels of this engine.
            config = AutoConfig.from_pretrained(source)
            config.dtype = torch.float32
            config.save_pretrained(path)

        WRITER.begin(directory.parent, directory.name, write)


def whole(weight: Tensor) -> Tensor:
    """A sharded weight gathered on this rank's device; collective."""
    if not isinstance(weight, DTensor):
        return weight
    here: Any = weight.to(get_device_id())
    return here.full_tensor()


def to_host(state: dict[Any, Any]) -> dict[Any, Any]:
    """The state with every tensor copied to host memory; shards stay shards.

    From a GPU, copies follow each other without waiting, into pinned memory. torch keeps that
    memory, once the writer has freed it, for the copies of the next checkpoint.
    """
    copied = tree_map_only(Tensor, _begin_copy, state)
    get_torch_device().synchronize()
    return copied


def _begin_copy(value: Tensor) -> Tensor:
    """A copy in host memory, complete when the device is synchronized; pinned if from a GPU."""
    return value.detach().to("cpu", copy=True, non_blocking=True)


def _save(state: dict[Any, Any], path: Path) -> None:
    with path.open("wb") as file:  # with a path, torch hides that the disk is full
        torch.save(state, file)


def _learnt(module: Any) -> dict[str, Tensor]:
    """This rank's live shards of the state, without frozen weights."""
    state = module.state_dict()
    parameters = module.named_parameters(remove_duplicate=False)
    frozen = {name for name, p in parameters if not p.requires_grad}
    return {name: value for name, value in state.items() if name not in frozen}


def _read_all(folder: Path, part: str, ranks: int) -> list[dict[Any, Any]]:
    return [_read(folder, part, rank, ranks) for rank in range(ranks)]


def _read(folder: Path, part: str, rank: int, ranks: int) -> dict[Any, Any]:
    path = folder / shard_name(part, rank, ranks)
    return torch.load(path, map_location="cpu", mmap=True, weights_only=True)


@torch.no_grad()
def _fill(target: Tensor, pieces: list[Any], name: str) -> None:
    """Copies the rows of this rank's shard from the shards in files."""
    if target.shape != pieces[0].shape:
        raise ValueError(
            f"{name} is {list(target.shape)} here and {list(pieces[0].shape)} in the checkpoint, "
            "which is of another model"
        )
    if not isinstance(target, DTensor):
        target.copy_(pieces[0])
        return
    # With hybrid sharding the mesh has a replica dimension before the shard dimension, and the
    # files of the first replica, which has all rows, come first.
    *copies, split = target.placements
    assert split == Shard(0) and all(copy.is_replicate() for copy in copies), target.placements
    mesh, last = target.device_mesh, target.device_mesh.ndim - 1
    rows = -(-target.shape[0] // mesh.size(last))
    local = target.to_local()
    start = min(rows * mesh.get_local_rank(last), target.shape[0])
    local.copy_(_rows([p.to_local() for p in pieces], start, start + len(local)))


def _rows(pieces: Iterable[Tensor], start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` of the concatenated tensors."""
    found, at = [], 0
    for piece in pieces:
        found.append(piece[max(start - at, 0) : max(stop - at, 0)])
        at += len(piece)
    return torch.cat(found)
