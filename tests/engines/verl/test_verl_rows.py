"""Rows as verl's jagged batches."""

import pytest
import torch


@pytest.mark.parametrize("lengths", [(3, 5), (5, 5), (4, 4), (6,)])
@pytest.mark.parametrize("leading", [(), (4,)])
def test_parts_are_jagged_in_their_last_dimension_whatever_their_lengths(leading, lengths):
    from verl.utils import tensordict_utils

    from vagen.engines.verl.rows import jagged

    parts = [torch.rand(*leading, length) for length in lengths]
    batch = tensordict_utils.get_tensordict({"position_ids": jagged(parts)}, {})
    tensordict_utils.maybe_fix_3d_position_ids(batch)
    chosen = tensordict_utils.index_select_tensor_dict(batch, [len(parts) - 1, 0])
    for found, part in zip(chosen["position_ids"].unbind(), (parts[-1], parts[0]), strict=True):
        assert torch.equal(found, part)
