"""What goes between the driver and the processes that play: JSON and Arrow, no pickle of ours."""

import dataclasses
import io
import json
from collections.abc import Mapping

import pyarrow as pa

from vagen.config.schema import SamplingConfig
from vagen.rollout.batch_tables import decode, encode
from vagen.rollout.runner import EpisodeSpec
from vagen.rollout.types import Trajectory


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """One episode to play."""

    spec: EpisodeSpec
    sampling: SamplingConfig
    split: str
    """Split of the levels: `train`, `val` or `test`."""

    def to_json(self) -> str:
        """As text."""
        spec, sampling = dataclasses.asdict(self.spec), self.sampling.model_dump()
        return json.dumps({"spec": spec, "sampling": sampling, "split": self.split})

    @classmethod
    def from_json(cls, text: str) -> "Order":
        """Inverse of `to_json`."""
        fields = json.loads(text)
        return cls(
            spec=EpisodeSpec(**fields["spec"]),
            # A rollout section is a sampling section with more in it.
            sampling=SamplingConfig(
                **{name: fields["sampling"][name] for name in SamplingConfig.model_fields}
            ),
            split=fields["split"],
        )


def pack_trajectory(trajectory: Trajectory, images: Mapping[str, bytes]) -> bytes:
    """A trajectory and the PNG bytes of its frames, as the tables of a batch in Arrow streams."""
    shown = {digest for row in trajectory.rows for digest in row.images}
    shown |= {digest for turn in trajectory.turns for digest in turn.images}
    frames = {digest: images[digest] for digest in shown}
    out = io.BytesIO()
    for table in encode([trajectory], frames).values():
        with pa.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table)
    return out.getvalue()


def unpack_trajectory(data: bytes) -> tuple[Trajectory, dict[str, bytes]]:
    """Inverse of `pack_trajectory`."""
    source = pa.BufferReader(data)
    names = ("trajectories", "turns", "tokens", "images")
    tables = {name: pa.ipc.open_stream(source).read_all() for name in names}
    (trajectory,), frames = decode(tables)
    return trajectory, frames
