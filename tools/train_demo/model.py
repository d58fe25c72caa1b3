"""transformers' DeepSeek-V4, made trainable: indexer, expert balance, rounding of experts."""

from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

# Doubled E2M1 values, as GGUF keeps them, and the bounds between neighbours.
_MXFP4_VALUES = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0])
_MXFP4_BOUNDS = (_MXFP4_VALUES[1:] + _MXFP4_VALUES[:-1]) / 2
_MXFP4_BLOCK = 32
# Residual streams begin almost separate; equal mixing would make one stream of them.
_OWN_STREAM = 3.0
_BALANCE_STEP = 1e-3
_NOT_SELECTED = -1e9


def build(folder: Path, seed: int) -> DeepseekV4ForCausalLM:
    """A model with fresh weights, of the numbers in ``config.json``; the same seed, the same."""
    torch.manual_seed(seed)
    config = DeepseekV4Config.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).float()
    tables = np.random.default_rng(seed)
    for layer in model.model.layers:
        for mixer in (layer.attn_hc, layer.ffn_hc):
            streams = mixer.hc_mult
            with torch.no_grad():
                mixer.base[2 * streams :] = _OWN_STREAM * torch.eye(streams).flatten()
        if layer.mlp.is_hash:
            shape = (config.vocab_size, config.n_routed_experts)
            ranks = torch.from_numpy(tables.random(shape).argsort(axis=1))
            layer.mlp.gate.tid2eid.copy_(ranks[:, : config.num_experts_per_tok])
        layer.mlp.experts.rounded = False
        layer.mlp.experts.forward = MethodType(_all_experts, layer.mlp.experts)
    return model


def _all_experts(
    self: v4.DeepseekV4Experts, hidden: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """Every expert on every token, most of them times zero: no waiting for the host's lists."""
    gates = hidden.new_zeros(hidden.shape[0], self.num_experts).scatter_add(1, ids, weights)
    gate_up, down = self.gate_up_proj, self.down_proj
    if self.rounded:
        gate_up, down = (_Rounded.apply(bank) for bank in (gate_up, down))  # type: ignore[no-untyped-call]
    inner = self._apply_gate(torch.einsum("td,efd->tef", hidden, gate_up))
    return torch.einsum("tef,edf->td", inner * gates.unsqueeze(-1), down)


class _Rounded(torch.autograd.Function):
    """MXFP4 values forward, as if nothing had happened backward."""

    @staticmethod
    def forward(ctx: object, weights: Tensor) -> Tensor:
        return mxfp4_round_trip(weights)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def mxfp4_round_trip(weights: Tensor) -> Tensor:
    """What GGUF's MXFP4 keeps of weights: E2M1 times a power of two for each 32 of a row."""
    blocks = weights.detach().unflatten(-1, (-1, _MXFP4_BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1
    # Half of the scale, since the values are doubled.
    scale = torch.ldexp(torch.ones_like(largest), exponent - 3)
    scaled = torch.where(largest > 0, blocks / scale, blocks)
    codes = torch.bucketize(scaled.abs(), _MXFP4_BOUNDS.to(weights.device))
    values = _MXFP4_VALUES.to(weights.device)[codes] * scaled.sign() * scale
    return values.flatten(-2)


class IndexerTeacher:
    """Teaches indexers to score rows by the weight that attention gives them.

    Which rows are selected has no gradient, so an indexer learns from a loss of its own: the
    divergence of its scores' softmax from the attention weights, summed over heads, on the rows
    that attention reads. The rest of the model does not feel it. Source: the DeepSeek-V3.2 report.
    """

    def __init__(self, model: DeepseekV4ForCausalLM) -> None:
        self._losses: list[Tensor] = []
        self._scores: dict[nn.Module, Tensor] = {}
        for layer in model.model.layers:
            attention = layer.self_attn
            indexer = getattr(attention.compressor, "indexer", None)
            if indexer is not None:
                indexer.register_forward_pre_hook(_cut_off)
                indexer.scorer.register_forward_hook(self._keep)
                attention.register_forward_hook(self._compare)

    def take(self) -> Tensor:
        """The mean loss of all indexers since the last call."""
        losses = torch.stack(self._losses)
        self._losses.clear()
        return losses.mean()

    def _keep(self, scorer: nn.Module, args: object, scores: Tensor) -> None:
        self._scores[scorer] = scores

    def _compare(self, attention: Any, args: object, output: tuple[Tensor, Tensor]) -> None:
        scores = self._scores.pop(attention.compressor.indexer.scorer)
        if not torch.is_grad_enabled() or scores.shape[-1] == 0:
            return
        weights = output[1][..., -scores.shape[-1] :].detach().sum(1)
        total = weights.sum(-1, keepdim=True)
        target = weights / total.clamp(min=1e-9)
        guess = scores.masked_fill(weights == 0, _NOT_SELECTED).log_softmax(-1)
        divergence = torch.xlogy(target, target) - target * guess
        self._losses.append(divergence.sum() / (total > 0).sum().clamp(min=1))


def _cut_off(indexer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    hidden, queries, *rest = args
    return (hidden.detach(), queries.detach(), *rest)


class ExpertBalance:
    """Keeps the scored experts equally busy by their biases, without a loss.

    What is read without gradients, such as held-out text, does not count.

    Source: auxiliary-loss-free balancing of the DeepSeek-V3 report.
    """

    def __init__(self, model: DeepseekV4ForCausalLM) -> None:
        self._loads: dict[Any, Tensor] = {}
        for layer in model.model.layers:
            if not layer.mlp.is_hash:
                layer.mlp.gate.register_forward_hook(self._count)

    def step(self) -> float:
        """Move the biases towards balance; the share of the busiest expert times their number."""
        busiest = 0.0
        for gate, load in self._loads.items():
            share = load / load.sum() * len(load)
            gate.e_score_correction_bias += _BALANCE_STEP * torch.sign(1 - share)
            busiest = max(busiest, share.max().item())
        self._loads.clear()
        return busiest

    def _count(self, gate: Any, args: object, output: tuple[Tensor, ...]) -> None:
        if not torch.is_grad_enabled():
            return
        load = torch.bincount(output[2].flatten(), minlength=gate.num_experts)
        self._loads[gate] = self._loads.get(gate, 0) + load


def set_sparse(model: DeepseekV4ForCausalLM, *, sparse: bool) -> None:
    """Whether attention reads the rows that the indexer selects, or all."""
    for layer in model.model.layers:
        indexer = getattr(layer.self_attn.compressor, "indexer", None)
        if indexer is not None:
            indexer.index_topk = (
                model.config.index_topk if sparse else model.config.max_position_embeddings
            )


def set_rounded(model: DeepseekV4ForCausalLM, *, rounded: bool) -> None:
    """Whether the experts are rounded to MXFP4."""
    for layer in model.model.layers:
        layer.mlp.experts.rounded = rounded
