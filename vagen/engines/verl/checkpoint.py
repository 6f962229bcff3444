"""Checkpoints of the distributed engine.

`policy/` holds all weights of the policy as an ordinary model directory. `actor/` and `critic/`
hold what they need to go on learning, in verl's sharded format: every rank has its files of
weights, optimizer moments and random state, named after it and the number of ranks. All nodes must
see the folder. Weights of the reference and bases under adapters are not part of a checkpoint: they
are what the engine started from.

A file of a rank holds its pieces of tensors that are split along their first dimension as
`torch.chunk` does it. So any number of ranks can read what any other number wrote: each takes the
rows that are its own. Files are mapped, not read whole.

A rank copies what it is to write to host memory; `RankWriter` writes and hashes the copies in
threads while the rank goes on. A checkpoint is whole when every rank says so.

The files are pickles. They are read without running code that they might name (`weights_only`);
the stages besides verify a checkpoint's digests before they load it.
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
from verl.utils.device import get_device_id

from vagen.models.loading import save_processor, save_weights, tied
from vagen.models.lora import merged_weights
from vagen.models.processor import Processor
from vagen.storage import FileEntry, StorageError, write_files

POLICY, ACTOR, CRITIC = "policy", "actor", "critic"
"""Folders of a checkpoint."""
PARTS = ("model", "optim", "extra_state")
"""Kinds of files."""


Written = tuple[dict[str, FileEntry] | None, OSError | None]
"""What a rank has written since it was asked last; None until all is. Or what went wrong."""


class RankWriter:
    """Writes a rank's files of one checkpoint after the other, in threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(len(PARTS) * 2 + 1)
        self._begun: list[Future[dict[str, FileEntry]]] = []

    def begin(self, directory: Path, name: str, write: Callable[[Path], None]) -> None:
        """Begins to write a file or folder `name` of the checkpoint in `directory`."""
        self._begun.append(self._threads.submit(write_files, directory, {name: write}))

    def written(self) -> Written:
        """Digests of all files of the checkpoint, if they are written; does not wait.

        Raises:
            Exception: A file could not be written, and the disk is not at fault.
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
"""Of this process, which is one rank of every network."""


def shard_name(part: str, rank: int, ranks: int) -> str:
    """Name of a rank's file, verl's own."""
    return f"{part}_world_size_{ranks}_rank_{rank}.pt"


def check_shards(folder: Path, ranks: int | None = None) -> int:
    """How many ranks wrote a network's files, which must all be there.

    Args:
        folder: `actor` or `critic` of a checkpoint.
        ranks: How many it must be; None looks.

    Raises:
        StorageError: None wrote any, or a rank's file is missing.
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
    """Writes and reads a network's own part of a checkpoint; in the place of verl's manager.

    verl's reads files of the same number of ranks only, and leaves out a value head on adapters.
    """

    @staticmethod
    def get_rng_state() -> dict[str, Any]:
        """verl's, with numpy's array as a list: only plain values are read back."""
        state = BaseCheckpointManager.get_rng_state()
        kind, keys, *others = state["numpy"]
        return state | {"numpy": (kind, keys.tolist(), *others)}

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Copies this rank's part and begins to write it."""
        folder = Path(local_path)
        folder.mkdir(parents=True, exist_ok=True)
        content = (
            _learnt(self.model),
            self.optimizer.state_dict(),
            {"lr_scheduler": self.lr_scheduler.state_dict(), "rng": self.get_rng_state()},
        )
        for part, state in zip(PARTS, content, strict=True):
            name = shard_name(part, self.rank, self.world_size)
            WRITER.begin(folder.parent, f"{folder.name}/{name}", partial(_save, _copied(state)))

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Takes up what this or another number of ranks wrote.

        The random state is this rank's if the number is the same, and otherwise stays.

        Raises:
            StorageError: A rank's file is missing.
            ValueError: The files are of another network.
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
        """Moments only: learning rate, decay and betas are the experiment's."""
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
    """A model directory with all weights, float32 as they are trained, adapters merged.

    Every rank calls it: they gather one weight after the other; the first keeps them, and begins to
    write them.

    Args:
        module: The sharded policy.
        source: Model directory that it was loaded from.
        processor: Of the policy.
        directory: Is made.
        rank: Of this process.
    """
    model = module.get_base_model() if hasattr(module, "peft_config") else module
    state = {}
    for name, weight in merged_weights(model, whole):
        if rank == 0:
            state[name] = weight.to("cpu", copy=True)
    if rank == 0:
        save_processor(directory, processor)
        state = tied(model, state)

        def write(path: Path) -> None:
            save_weights(path, model, state)
            # The module's own also says which kernels this engine computes it with.
            config = AutoConfig.from_pretrained(source)
            config.dtype = torch.float32
            config.save_pretrained(path)

        WRITER.begin(directory.parent, directory.name, write)


def whole(weight: Tensor) -> Tensor:
    """All of a sharded weight, on this rank's device; every rank calls it."""
    if not isinstance(weight, DTensor):
        return weight
    here: Any = weight.to(get_device_id())
    return here.full_tensor()


def _copied(state: dict[Any, Any]) -> dict[Any, Any]:
    """The state with every tensor copied to host memory; what is in pieces stays so."""
    return tree_map_only(Tensor, lambda value: value.detach().to("cpu", copy=True), state)


def _save(state: dict[Any, Any], path: Path) -> None:
    with path.open("wb") as file:  # given a path, torch says of a full disk only that it failed
        torch.save(state, file)


def _learnt(module: Any) -> dict[str, Tensor]:
    """This rank's pieces of the state, the live ones, without what stays as it was loaded."""
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
    """Copies into this rank's piece of a tensor its rows of the `pieces` that ranks wrote."""
    if target.shape != pieces[0].shape:
        raise ValueError(
            f"{name} is {list(target.shape)} here and {list(pieces[0].shape)} in the checkpoint, "
            "which is of another model"
        )
    if not isinstance(target, DTensor):
        target.copy_(pieces[0])
        return
    # With hybrid sharding the mesh has a dimension of copies before that of the shards, and files
    # of copies come behind those of the first one, which has all rows.
    *copies, split = target.placements
    assert split == Shard(0) and all(copy.is_replicate() for copy in copies), target.placements
    mesh, last = target.device_mesh, target.device_mesh.ndim - 1
    rows = -(-target.shape[0] // mesh.size(last))
    local = target.to_local()
    start = min(rows * mesh.get_local_rank(last), target.shape[0])
    local.copy_(_rows([p.to_local() for p in pieces], start, start + len(local)))


def _rows(pieces: Iterable[Tensor], start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` of tensors that lie one behind the other."""
    found, at = [], 0
    for piece in pieces:
        found.append(piece[max(start - at, 0) : max(stop - at, 0)])
        at += len(piece)
    return torch.cat(found)
