"""Rows as verl's jagged batches."""

from dataclasses import replace

import pytest
import torch
from verl_stories import rows_of


@pytest.mark.parametrize("lengths", [(3, 5), (5, 5), (4, 4), (6,)])
@pytest.mark.parametrize("leading", [(), (4,)])
def test_parts_are_jagged_in_their_last_dimension_whatever_their_lengths(leading, lengths):
    from verl.utils import tensordict_utils

    from vagen.engines.verl.rows import jagged

    parts = [torch.rand(*leading, length) for length in lengths]
    batch = tensordict_utils.get_tensordict({"position_ids": jagged(parts)}, {})
    tensordict_utils.maybe_fix_3d_position_ids(batch)
    chosen = tensordict_utils.index_select_tensor_dict(batch, [len(parts) - 1, 0])
    # pyrefly: ignore[missing-argument]
    for found, part in zip(chosen["position_ids"].unbind(), (parts[-1], parts[0]), strict=True):
        assert torch.equal(found, part)


def shorter(row):
    """A row that is no other one's, with its last token gone."""
    return replace(row, input_ids=row.input_ids[:-1], loss_mask=row.loss_mask[:-1], columns={})


def test_ranks_get_the_rows_of_a_batch_once(vl_batch, family_dirs):
    """Whatever reads them, whoever has loaded them; the next batch takes their place."""
    from vagen.engines.objectives import column_of
    from vagen.engines.verl.rows import ROWS, SharedRows, to_batch
    from vagen.models.processor import load_processor

    processor = load_processor(family_dirs["qwen2_5_vl"])
    put = []

    def store(entry):
        put.append(entry)
        return len(put) - 1

    shared = SharedRows(processor, lambda row: row.loss_mask, put=store)
    rows = rows_of(vl_batch)[:5]
    shares, order = shared.shares(rows, vl_batch.images, 2, ("advantages",), {"lr": 0.5})
    assert len(put) == 5
    assert sorted(order) == list(range(6))
    assert [len(share.rows) for share in shares] == [3, 3]
    # The sixth is a silent copy of the shortest row: no other row has to be stored for it.
    full = [*rows, min(rows, key=lambda row: len(row.input_ids))]
    for rank, share in enumerate(shares):
        for place, i in enumerate(order[3 * rank : 3 * rank + 3]):
            entry = put[share.rows[place]]
            assert (entry["whole"].ids == full[i].input_ids).all()
            assert entry["frames"] == [vl_batch.images[digest] for digest in full[i].images]
            mask = full[i].loss_mask if i < 5 else 0 * full[i].loss_mask
            assert (share.actions[place] == mask).all()
            advantages = column_of(full[i], "advantages") if i < 5 else 0 * full[i].input_ids
            assert (share.columns["advantages"][place] == advantages).all()
    assert shares[0].options["lr"] == 0.5
    lengths = [len(row.input_ids) for row in full]
    assert sorted(shares[0].options["global_token_num"]) == sorted(lengths)
    patches = shares[1].options["images_seqlens"]
    assert len(patches) == sum(len(row.images) for row in full)
    # Loaded again they are the same; a mini batch of them as well.
    again = [replace(row, columns={}) for row in rows[1:4]]
    shared.shares(again, vl_batch.images, 2)
    assert len(put) == 5
    # Rows that are not there belong to the same batch if the call says so, or begin another one:
    # the first one is gone then.
    more = rows_of(vl_batch)[5:]
    assert more
    shared.shares(more, vl_batch.images, 1, batch=rows_of(vl_batch))
    shared.shares(rows_of(vl_batch), vl_batch.images, 1)
    assert len(put) == 5 + len(more)
    shared.shares([shorter(rows[0])], vl_batch.images, 1)
    shared.shares(rows, vl_batch.images, 1)
    assert len(put) == 5 + len(more) + 1 + 5
    whole = to_batch(rows, vl_batch.images, processor, action_mask=lambda row: row.loss_mask)
    assert len(whole[ROWS]) == 5
