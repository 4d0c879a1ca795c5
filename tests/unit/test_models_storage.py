"""KV accounting of the runners: what is admitted, what a refusal leaves, what a release gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from specdec_core.errors import InvariantError, OverloadedError
from specdec_core.kv.block_pool import BlockPool
from specdec_core.kv.block_table import check_pool
from specdec_core.models.attention import causal_mask
from specdec_core.models.forward import Segment
from specdec_core.models.loading import LoadOptions, load_model
from specdec_core.models.paged_storage import PagedKv
from specdec_core.models.runner import LlamaRunner
from specdec_core.models.storage import ContiguousKv, ContiguousSequence, LayerShape
from specdec_core.models.transformers_runner import TransformersRunner
from tests.support.tiny_models import MAX_CONTEXT, build_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from specdec_core.kv.block_table import BlockTable
    from specdec_core.models.forward import SequenceKv
    from specdec_core.models.storage import KvStorage

torch.set_num_threads(1)

CPU = torch.device("cpu")
SHAPES = (LayerShape(num_kv_heads=2, key_dim=3, value_dim=5), LayerShape(1, 4, 4))
Runner = LlamaRunner | TransformersRunner


@pytest.fixture(scope="module", params=["llama", "opt"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(request.param, tmp_path_factory.mktemp("tiny") / request.param)


@pytest.fixture
def model(folder: Path) -> Runner:
    """Eight blocks of four tokens."""
    loaded = load_model(folder, LoadOptions(kv_tokens=32, block_size=4))
    assert isinstance(loaded, LlamaRunner | TransformersRunner)
    return loaded


@pytest.fixture(params=[ContiguousKv, PagedKv])
def storage(request: pytest.FixtureRequest) -> KvStorage:
    made: KvStorage = request.param(BlockPool(8, 4), SHAPES, CPU, torch.float32)
    return made


def test_blocks_follow_length_and_return_to_the_pool(model: Runner) -> None:
    pool = model.storage.pool
    kv = model.new_sequence()
    model.forward([Segment(kv, [1] * 9, 0)])
    assert (kv.length, pool.num_free) == (9, 5)
    kv.truncate(4)
    assert (kv.length, pool.num_free) == (4, 7)
    kv.release()
    kv.release()
    assert pool.num_free == 8
    pool.check_integrity()


def test_a_refused_batch_changes_no_sequence(model: Runner) -> None:
    pool = model.storage.pool
    first, second = model.new_sequence(), model.new_sequence()
    model.forward([Segment(first, [1, 2, 3], 0), Segment(second, [4] * 8, 0)])
    with pytest.raises(OverloadedError):
        model.forward([Segment(first, [5] * 3, 1), Segment(second, [6] * 21, 1)])
    assert (first.length, second.length, pool.num_free) == (3, 8, 5)
    assert model.forward([Segment(first, [5] * 3, 1), Segment(second, [6] * 16, 1)]).shape[0] == 2
    check_pool(pool, _tables(first, second))


def test_a_failing_forward_gives_its_blocks_back(model: Runner) -> None:
    kv = model.new_sequence()
    model.forward([Segment(kv, [1, 2, 3], 0)])
    with pytest.raises(IndexError):
        model.forward([Segment(kv, [4, 10_000], 1)])
    assert (kv.length, model.storage.pool.num_free) == (3, 7)


def test_malformed_segments_are_refused(model: Runner) -> None:
    kv = model.new_sequence()
    for segments in (
        [Segment(kv, [], 0)],
        [Segment(kv, [1], 2)],
        [Segment(kv, [1], 0), Segment(kv, [2], 0)],
        [Segment(kv, [1] * (MAX_CONTEXT + 1), 0)],
    ):
        with pytest.raises(InvariantError):
            model.forward(segments)
    assert (kv.length, model.storage.pool.num_free) == (0, 8)


def test_kv_of_another_model_is_refused(model: Runner, folder: Path) -> None:
    stranger = load_model(folder, LoadOptions()).new_sequence()
    with pytest.raises(InvariantError, match="not made by this model"):
        model.forward([Segment(stranger, [1], 1)])


def test_a_rollback_beyond_the_length_is_refused(model: Runner) -> None:
    kv = model.new_sequence()
    model.forward([Segment(kv, [1, 2], 0)])
    for length in (-1, 3):
        with pytest.raises(InvariantError):
            kv.truncate(length)
    assert kv.length == 2


def test_both_storages_read_back_what_was_written(storage: KvStorage) -> None:
    """Interleaved growth, rollback and reuse of blocks, against plain lists of rows."""
    generator = torch.Generator().manual_seed(3)
    sequences = [storage.new_sequence() for _ in range(2)]
    kept: list[list[tuple[torch.Tensor, torch.Tensor]]] = [
        [
            (torch.empty(0, s.num_kv_heads, s.key_dim), torch.empty(0, s.num_kv_heads, s.value_dim))
            for s in SHAPES
        ]
        for _ in sequences
    ]
    for which, length, count in ((0, 0, 5), (1, 0, 7), (0, 3, 6), (1, 7, 1), (0, 9, 2), (1, 2, 9)):
        sequence = sequences[which]
        sequence.truncate(length)
        sequence.append(count)
        for layer, shape in enumerate(SHAPES):
            keys = torch.randn(count, shape.num_kv_heads, shape.key_dim, generator=generator)
            values = torch.randn(count, shape.num_kv_heads, shape.value_dim, generator=generator)
            old_keys, old_values = kept[which][layer]
            kept[which][layer] = (
                torch.cat((old_keys[:length], keys)),
                torch.cat((old_values[:length], values)),
            )
            all_keys, all_values = sequence.write(layer, keys, values)
            assert torch.equal(all_keys.transpose(0, 1), kept[which][layer][0])
            assert torch.equal(all_values.transpose(0, 1), kept[which][layer][1])
        check_pool(storage.pool, [each.table for each in sequences])


def test_a_slot_that_outgrows_its_tensors_keeps_its_tokens() -> None:
    storage = ContiguousKv(BlockPool(200, 4), SHAPES[:1], CPU, torch.float32)
    sequence = storage.new_sequence()
    rows = torch.arange(600 * 2 * 5, dtype=torch.float32).view(600, 2, 5)
    for start, end in ((0, 250), (250, 300), (300, 600)):
        sequence.append(end - start)
        keys, values = sequence.write(0, rows[start:end, :, :3], rows[start:end])
    assert torch.equal(keys.transpose(0, 1), rows[:, :, :3])
    assert torch.equal(values.transpose(0, 1), rows)


def test_a_mask_hides_the_future_and_what_left_the_window() -> None:
    visible = causal_mask(2, 4, 3, torch.empty(0)) == 0
    assert visible.tolist() == [[True, True, True, False], [False, True, True, True]]


def _tables(*sequences: SequenceKv) -> list[BlockTable]:
    return [sequence.table for sequence in sequences if isinstance(sequence, ContiguousSequence)]
