"""The linear and the activation whose result for a row does not depend on the rows beside it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from specdec_core.models.activation import RowwiseSilu, Silu
from specdec_core.models.linear import PlainBackend, PrepackedLinear
from specdec_core.models.tiled_linear import TiledBackend, TiledLinear, proven_sizes

SHAPES = [(960, 576), (576, 1536), (64, 32), (33, 100), (7, 2048)]  # out_features, in_features


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_row_of_a_tiled_product_has_the_same_bits_in_every_batch(
    out_features: int, in_features: int, num_threads: int, has_bias: bool
) -> None:
    torch.set_num_threads(num_threads)
    bias = normal(out_features, seed=2) if has_bias else None
    linear = TiledBackend().build(normal(out_features, in_features, seed=1), bias)
    rows = normal(150, in_features, seed=3)
    expected = linear(rows)
    for count in (*range(1, 19), 23, 31, 33, 63, 64, 65, 127, 129):
        for begin in (0, 5, 150 - count):
            part = slice(begin, min(begin + count, 150))
            assert torch.equal(linear(rows[part]), expected[part])


def test_a_tiled_product_is_the_product() -> None:
    weight, bias, rows = normal(80, 96, seed=1), normal(80, seed=2), normal(71, 96, seed=3)
    expected = functional.linear(rows, weight, bias)
    assert torch.allclose(TiledBackend().build(weight, bias)(rows), expected, atol=1e-4)
    assert TiledBackend().build(weight, bias)(rows[:0]).shape == (0, 80)


class Recorder:
    """Notes how many rows each call brings."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        self.counts.append(rows.shape[0])
        return 2 * rows


@pytest.mark.parametrize(
    ("count", "calls"),
    [(0, [0]), (1, [2]), (2, [2]), (3, [8]), (8, [8]), (9, [8, 2]), (16, [8, 8]), (21, [8, 8, 8])],
)
def test_only_proven_sizes_reach_the_kernel(count: int, calls: list[int]) -> None:
    kernel = Recorder()
    rows = normal(count, 4, seed=count)
    assert torch.equal(TiledLinear(kernel, (2, 8))(rows), 2 * rows)
    assert kernel.counts == calls


class PlaceDependent:
    """A kernel that treats odd places of a tile of three otherwise."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product = rows.clone()
        if rows.shape[0] == 3:
            product[1::2] *= 1 + 2**-20
        return product


def test_a_size_whose_kernel_looks_at_the_place_of_a_row_is_not_proven() -> None:
    assert proven_sizes(PlaceDependent(), normal(8, 64, seed=1), (1, 2, 3, 4, 8)) == (1, 2, 4, 8)


def test_a_kernel_with_another_order_of_additions_is_not_proven() -> None:
    weight = normal(576, 1536, seed=1)

    def halves_if_few(rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] > 2:
            return linear(rows)
        return linear(rows * first) + linear(rows * (1 - first))

    linear = PlainBackend().build(weight)
    first = (torch.arange(1536) < 768).float()
    sizes = proven_sizes(halves_if_few, normal(64, 1536, seed=2), (1, 2, 64))
    assert sizes == (64,)


def test_the_backend_proves_the_packed_product() -> None:
    linear = TiledBackend().build(normal(32, 32, seed=1))
    assert isinstance(linear, TiledLinear)
    assert isinstance(linear.linear, PrepackedLinear)
    assert linear.sizes[-1] == 64


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("width", [1536, 1100, 100, 31])
@pytest.mark.parametrize("is_strided", [False, True])
def test_rowwise_silu_gives_a_row_the_same_bits_in_every_batch(
    num_threads: int, width: int, is_strided: bool
) -> None:
    torch.set_num_threads(num_threads)
    both = normal(701, 2 * width, seed=width)
    rows = both[:, :width] if is_strided else both[:, :width].contiguous()
    whole = RowwiseSilu()(rows)
    assert torch.allclose(whole, functional.silu(rows), atol=1e-6)
    assert all(torch.equal(RowwiseSilu()(rows[row : row + 1])[0], whole[row]) for row in range(701))


def test_silu_of_all_rows_at_once_does_not() -> None:
    rows = normal(701, 31, seed=1)
    whole = Silu()(rows)
    assert not all(torch.equal(Silu()(rows[row : row + 1])[0], whole[row]) for row in range(701))
