"""Official numerics put into transformers' model, with torch's own 8-bit type.

transformers computes plain numerics. Forward hooks quantise what official numerics stores: the
rows of window and compressor (their plain dims are final after the norm) and what the indexer
multiplies.
"""

import torch
from torch import Tensor, nn
from transformers import DeepseekV4ForCausalLM

FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Halfway points, and which of their neighbours has an even code.
FP4_HALFWAY = (FP4_VALUES[1:] + FP4_VALUES[:-1]) / 2


def power_of_two_at_least(x: Tensor) -> Tensor:
    """The smallest power of two that is not below ``x``, elementwise."""
    power = torch.exp2(torch.ceil(torch.log2(x.double())))
    power = torch.where(power / 2 >= x, power / 2, power)
    return torch.where(power < x, power * 2, power)


def fp8_round_trip(rows: Tensor, rope_dim: int) -> Tensor:
    """E4M3 in blocks of 64 on all but the last ``rope_dim`` values."""
    plain, tail = rows[..., :-rope_dim], rows[..., -rope_dim:]
    blocks = plain.unflatten(-1, (-1, 64))
    absmax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = power_of_two_at_least(absmax.double() / 448).float()
    codes = (blocks / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return torch.cat([(codes.float() * scale).flatten(-2), tail], -1)


def hadamard_fp4_round_trip(rows: Tensor) -> Tensor:
    """Orthonormal Hadamard matrix, then E2M1 in blocks of 32."""
    n = rows.shape[-1]
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < n:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    turned = rows.double() @ (matrix / n**0.5)
    blocks = turned.unflatten(-1, (-1, 32))
    absmax = blocks.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126)
    scaled = blocks / power_of_two_at_least(absmax / 6)
    above = torch.bucketize(scaled.abs(), FP4_HALFWAY.double(), right=True)
    below = torch.bucketize(scaled.abs(), FP4_HALFWAY.double(), right=False)
    code = torch.where(above % 2 == 0, above, below)  # they differ on halfway points only
    values = torch.copysign(FP4_VALUES.double()[code], scaled)
    return (values * power_of_two_at_least(absmax / 6)).flatten(-2).float()


def make_official(model: DeepseekV4ForCausalLM, rope_dim: int) -> None:
    """Quantise rows, index rows and index queries of every layer."""

    def round_rows(module: nn.Module, args: object, rows: Tensor) -> Tensor:
        return fp8_round_trip(rows, rope_dim)

    def round_index(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        q, rows, hidden = args
        return hadamard_fp4_round_trip(q), hadamard_fp4_round_trip(rows), hidden

    for layer in model.model.layers:
        attention = layer.self_attn
        attention.kv_norm.register_forward_hook(round_rows)
        if attention.compressor is None:
            continue
        attention.compressor.kv_norm.register_forward_hook(round_rows)
        if hasattr(attention.compressor, "indexer"):
            attention.compressor.indexer.scorer.register_forward_pre_hook(round_index)
