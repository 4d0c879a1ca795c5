"""Linear backends against products with the weights their rounded form stands for."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from specdec_core.errors import UnsupportedModelError
from specdec_core.models.linear import (
    Linear,
    PlainBackend,
    PlainLinear,
    PrepackedBackend,
    PrepackedLinear,
    unquantized_backend,
)
from specdec_core.models.quantized_linear import (
    Int4Backend,
    Int4Linear,
    Int8Backend,
    Int8Linear,
    quantize_int4,
    quantize_int8,
    require_quantization_support,
)

torch.set_num_threads(1)

ROW_COUNTS = (1, 2, 3, 4, 5, 8, 33)
CPU = torch.device("cpu")


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(linear: Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> float:
    errors = []
    for count in ROW_COUNTS:
        rows = normal(count, weight.shape[1], seed=count)
        expected = functional.linear(
            rows.double(), weight.double(), None if bias is None else bias.double()
        )
        errors.append(
            ((linear(rows).double() - expected).abs().max() / expected.abs().max()).item()
        )
    return max(errors)


@pytest.mark.parametrize("backend", [PlainBackend(), PrepackedBackend()])
@pytest.mark.parametrize("has_bias", [False, True])
def test_unrounded_backends_multiply_exactly(
    backend: PlainBackend | PrepackedBackend, has_bias: bool
) -> None:
    weight = normal(80, 96, seed=1)
    bias = normal(80, seed=2) if has_bias else None
    assert relative_error(backend.build(weight, bias), weight, bias) < 1e-5


def test_a_prepacked_weight_is_a_copy() -> None:
    weight = normal(32, 32, seed=1)
    linear = PrepackedBackend().build(weight)
    before = linear(torch.ones(2, 32))
    weight.zero_()
    assert torch.equal(linear(torch.ones(2, 32)), before)


def test_the_backend_follows_device_and_dtype() -> None:
    assert isinstance(unquantized_backend(CPU, torch.float32), PrepackedBackend)
    assert isinstance(unquantized_backend(CPU, torch.float64), PlainBackend)
    assert isinstance(unquantized_backend(torch.device("meta"), torch.float32), PlainBackend)


@pytest.mark.parametrize("has_bias", [False, True])
def test_int8_multiplies_by_the_weight_it_stands_for(has_bias: bool) -> None:
    weight = normal(80, 96, seed=1)
    bias = normal(80, seed=2) if has_bias else None
    quantized, scales = quantize_int8(weight)
    meant = quantized.float() * scales.float()[:, None]
    linear = Int8Backend(PlainBackend()).build(weight, bias)
    assert isinstance(linear, Int8Linear)
    assert (meant - weight).abs().max() <= 0.51 * scales.float().max()
    assert relative_error(linear, meant, bias) < 1e-2  # of bfloat16 activations


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_int4_multiplies_by_the_weight_it_stands_for(group_size: int, has_bias: bool) -> None:
    weight = normal(80, 128, seed=1)
    bias = normal(80, seed=2) if has_bias else None
    quantized, scales_and_zeros = quantize_int4(weight, group_size)
    scales, zeros = (
        scales_and_zeros[..., part].float().t().repeat_interleave(group_size, dim=1)
        for part in (0, 1)
    )
    meant = (quantized - 8) * scales + zeros
    linear = Int4Backend(group_size, PlainBackend()).build(weight, bias)
    assert isinstance(linear, Int4Linear)
    assert ((meant - weight).abs() <= 0.55 * scales + 0.02).all()
    assert relative_error(linear, meant, bias) < 1e-2


def test_int4_is_exact_on_weights_that_already_have_sixteen_levels() -> None:
    levels = torch.randint(0, 16, (16, 64), generator=torch.Generator().manual_seed(5))
    levels[:, 0], levels[:, 1] = 0, 15
    weight = (levels - 8) * 0.25 + 0.5
    quantized, scales_and_zeros = quantize_int4(weight, 64)
    assert torch.equal(quantized, levels.to(torch.int32))
    assert scales_and_zeros[0, 0].tolist() == [0.25, 0.5]


def test_a_constant_row_survives_rounding() -> None:
    for weight in (torch.zeros(16, 32), torch.full((16, 32), 0.5)):
        rows = torch.ones(2, 32)
        for backend in (Int8Backend(PlainBackend()), Int4Backend(32, PlainBackend())):
            assert torch.allclose(
                backend.build(weight)(rows), functional.linear(rows, weight), rtol=1e-2
            )


def test_a_layer_no_large_group_divides_takes_a_smaller_group() -> None:
    linear = Int4Backend(128, PlainBackend()).build(normal(16, 96, seed=1))
    assert isinstance(linear, Int4Linear)
    assert linear.group_size == 32


@pytest.mark.parametrize(("out_features", "in_features"), [(16, 48), (33, 64), (7, 33)])
def test_shapes_the_kernels_cannot_tile_stay_unrounded(out_features: int, in_features: int) -> None:
    weight = normal(out_features, in_features, seed=1)
    for backend in (Int8Backend(PlainBackend()), Int4Backend(64, PlainBackend())):
        assert isinstance(backend.build(weight), PlainLinear)
    assert isinstance(Int8Backend(PrepackedBackend()).build(weight), PrepackedLinear)


def test_rounding_is_refused_off_the_cpu() -> None:
    with pytest.raises(UnsupportedModelError, match="CPU only"):
        require_quantization_support(torch.device("cuda"))
