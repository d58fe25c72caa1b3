"""What is measured: the kernels at V4-Flash's shapes, and the same maths in PyTorch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import torch
import torch.nn.functional as F

from mlx_dsv4 import ops
from mlx_dsv4.gguf.random_rows import random_rows
from mlx_dsv4.reference import dequantize

HEADS, DIM, WINDOW, RATIO, SELECTED = 64, 512, 128, 4, 512
INDEX_HEADS, INDEX_DIM = 64, 128
HIDDEN, STREAMS, EPS = 4096, 4, 1e-6
EXPERTS, USED, EXPERT_HIDDEN, ROUTED = 64, 6, 2048, 256


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        name: Of the op.
        shape: In words.
        call: Makes the op's result, unevaluated.
        peer: The same maths in PyTorch on the GPU; None where it has no such function.
        n_bytes: That must be read and written at least.
        n_flops: A multiply-add is two.
    """

    name: str
    shape: str
    call: Callable[[], Any]
    peer: Callable[[], Any] | None
    n_bytes: int
    n_flops: int = 0


def on_gpu(a: mx.array) -> torch.Tensor:
    """The same values on the GPU."""
    if a.dtype == mx.bfloat16:
        words = torch.from_numpy(np.array(a.view(mx.uint16)).view(np.int16))
        return words.view(torch.bfloat16).cuda()
    return torch.from_numpy(np.array(a)).cuda()


def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Random values, computed."""
    a = mx.random.normal(shape).astype(dtype)
    mx.eval(a)
    return a


def of_context(n_tokens: int, context: int) -> Iterator[Case]:
    """What depends on the number of tokens in the cache."""
    shape = f"T{n_tokens} context {context}"
    start = context - n_tokens
    yield attention(n_tokens, start, shape)
    yield from indexer(n_tokens, start, shape)
    n_rows = (start + n_tokens) // RATIO
    width, closed = 2 * DIM, (start + n_tokens) // RATIO - start // RATIO
    arrays = [normal(n_tokens, width) for _ in range(2)]
    state = [mx.zeros((2 * RATIO, width)) for _ in range(2)]
    rows = mx.zeros((n_rows, DIM), mx.bfloat16)
    ape, norm, rotation = normal(RATIO, width), normal(DIM), normal(closed, 32, 2)
    mx.eval(state, rows)
    yield Case(
        "compressor_append",
        shape,
        lambda: ops.compressor_append(
            *arrays,
            ape,
            norm,
            rotation,
            *state,
            rows,
            start=start,
            ratio=RATIO,
            first_row=0,
            eps=EPS,
            round_trip="fp8",
        ),
        None,
        n_tokens * 2 * width * 4 + closed * DIM * 2,
    )


def attention(n_tokens: int, start: int, shape: str) -> Case:
    """Over the window and the selected rows."""
    rng = np.random.default_rng(0)
    q, rows = normal(n_tokens, HEADS, DIM, dtype=mx.bfloat16), normal(n_tokens, DIM)
    kv = normal(WINDOW + (start + n_tokens) // RATIO, DIM, dtype=mx.bfloat16)
    rows = rows.astype(mx.bfloat16)
    sinks, rotation = normal(HEADS), normal(n_tokens, 32, 2)
    visible = start // RATIO
    chosen = np.sort(rng.integers(0, visible, (n_tokens, SELECTED)), axis=1).astype(np.int32)
    selected = mx.array(chosen)
    mx.eval(rows, selected)
    queries, latents, sink = on_gpu(q), on_gpu(kv), on_gpu(sinks)[None, :, None]
    listed = torch.cat(
        [torch.arange(WINDOW).expand(n_tokens, -1), WINDOW + torch.from_numpy(chosen).long()], 1
    ).cuda()

    def peer() -> torch.Tensor:
        keys = latents[listed]
        logits = torch.einsum("thd,trd->thr", queries, keys).float() / DIM**0.5
        weights = torch.softmax(torch.cat([logits, sink.expand(n_tokens, -1, 1)], 2), 2)[..., :-1]
        return torch.einsum("thr,trd->thd", weights.bfloat16(), keys)

    return Case(
        "attention",
        shape,
        lambda: ops.attention(
            q,
            rows,
            kv,
            sinks,
            rotation,
            selected=selected,
            start=start,
            window=WINDOW,
            ratio=RATIO,
        ),
        peer,
        n_tokens * (WINDOW + SELECTED) * 2 * DIM + 2 * q.nbytes,
        4 * HEADS * DIM * (WINDOW + SELECTED) * n_tokens,
    )


def indexer(n_tokens: int, start: int, shape: str) -> Iterator[Case]:
    """Scores of every compressed row, and the best of them."""
    n_rows = (start + n_tokens) // RATIO
    q = normal(n_tokens, INDEX_HEADS, INDEX_DIM, dtype=mx.bfloat16)
    w, rows = normal(n_tokens, INDEX_HEADS), normal(n_rows, INDEX_DIM, dtype=mx.bfloat16)
    scores = normal(n_tokens, n_rows)
    queries, weights, keys, scored = map(on_gpu, (q, w, rows, scores))

    def peer() -> torch.Tensor:
        products = torch.relu(queries.flatten(0, 1) @ keys.T).view(n_tokens, INDEX_HEADS, n_rows)
        return torch.einsum("th,thn->tn", weights.bfloat16(), products)

    place = {"start": start, "ratio": RATIO}
    yield Case(
        "indexer_scores",
        shape,
        lambda: ops.indexer_scores(q, w, rows, **place, scale=1.0),
        peer,
        rows.nbytes + 4 * n_tokens * n_rows,
        2 * INDEX_HEADS * INDEX_DIM * n_rows * n_tokens,
    )
    yield Case(
        "indexer_topk",
        shape,
        lambda: ops.indexer_topk(scores, **place, k=SELECTED),
        lambda: torch.topk(scored, SELECTED).indices.sort().values,
        scores.nbytes,
    )


def of_any_context(n_tokens: int) -> Iterator[Case]:
    """What every token costs, however many come before it."""
    shape = f"T{n_tokens}"
    yield from hyper(n_tokens, shape)
    for format in ("bf16", "q8_0", "mxfp4"):
        yield matmul(n_tokens, format, shape)
    yield experts(n_tokens, shape)
    logits, bias = normal(n_tokens, ROUTED), normal(ROUTED)
    scored, added = on_gpu(logits), on_gpu(bias)

    def route() -> torch.Tensor:
        values = F.softplus(scored).sqrt()
        chosen = values.gather(1, torch.topk(values + added, USED).indices)
        return 1.5 * chosen / chosen.sum(1, keepdim=True)

    yield Case(
        "route_scored",
        shape,
        lambda: ops.route_scored(logits, bias, k=USED, scale=1.5),
        route,
        logits.nbytes,
    )
    kv, norm, rotation = normal(n_tokens, DIM), normal(DIM), normal(n_tokens, 32, 2)
    yield Case(
        "window_rows",
        shape,
        lambda: ops.window_rows(kv, norm, rotation, eps=EPS, round_trip="fp8", dtype=mx.bfloat16),
        None,
        n_tokens * (4 * DIM + 8 * 32 + 2 * DIM),
    )


def hyper(n_tokens: int, shape: str) -> Iterator[Case]:
    """Hyper-connections: into a layer and out of it."""
    n_rows = (2 + STREAMS) * STREAMS
    streams, fn = normal(n_tokens, STREAMS, HIDDEN), normal(n_rows, STREAMS * HIDDEN)
    base, scale, norm = normal(n_rows), mx.ones(3), mx.ones(HIDDEN)
    y, post = normal(n_tokens, HIDDEN), mx.random.uniform(shape=(n_tokens, STREAMS))
    comb = mx.random.uniform(shape=(n_tokens, STREAMS, STREAMS))
    mx.eval(scale, norm, post, comb)
    s, f, b, out, p, c = map(on_gpu, (streams, fn, base, y, post, comb))

    def pre() -> torch.Tensor:
        flat = s.flatten(1)
        mixes = flat @ f.T * torch.rsqrt(flat.square().mean(1, keepdim=True) + EPS) + b
        square = torch.softmax(mixes[:, 2 * STREAMS :].view(-1, STREAMS, STREAMS), 2)
        for _ in range(20):
            square = square / (square.sum(2, keepdim=True) + EPS)
            square = square / (square.sum(1, keepdim=True) + EPS)
        x = torch.einsum("ts,tsd->td", torch.sigmoid(mixes[:, :STREAMS]), s)
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS)

    yield Case(
        "hyper_pre",
        shape,
        lambda: ops.hyper_pre(
            streams, fn, base, scale, norm, iterations=20, norm_eps=EPS, hyper_eps=EPS
        ),
        pre,
        fn.nbytes + streams.nbytes + streams.nbytes // STREAMS,
        2 * n_rows * streams.size,
    )
    yield Case(
        "hyper_post",
        shape,
        lambda: ops.hyper_post(streams, y, post, comb),
        lambda: torch.einsum("tsd,tso->tod", s, c) + p[:, :, None] * out[:, None],
        2 * streams.nbytes + y.nbytes,
        2 * (STREAMS + 1) * streams.size,
    )


def packed(n_rows: int, k: int, format: str) -> np.ndarray:
    """Blocks of rows; 16 random rows repeat."""
    return np.tile(random_rows((16, k), format, std=1 / 64), (n_rows // 16, 1))


def matmul(n_tokens: int, format: str, shape: str) -> Case:
    """A square matrix of the hidden width; PyTorch has it in bfloat16."""
    x, blocks = normal(n_tokens, HIDDEN), packed(HIDDEN, HIDDEN, format)
    weight = mx.array(blocks)
    mx.eval(weight)
    dense = torch.from_numpy(dequantize(blocks, format).astype(np.float32)).cuda().bfloat16()
    small = on_gpu(x).bfloat16()
    return Case(
        f"matmul {format}",
        shape,
        lambda: ops.matmul(x, weight, format=format),
        lambda: small @ dense.T,
        weight.nbytes + 8 * n_tokens * HIDDEN,
        2 * n_tokens * HIDDEN * HIDDEN,
    )


def experts(n_tokens: int, shape: str) -> Case:
    """6 of 64 experts in mxfp4; PyTorch has them in bfloat16."""
    rng = np.random.default_rng(1)
    sizes = [(EXPERT_HIDDEN, HIDDEN), (EXPERT_HIDDEN, HIDDEN), (HIDDEN, EXPERT_HIDDEN)]
    blocks = [packed(*size, "mxfp4") for size in sizes]
    matrices = [mx.array(np.tile(b, (EXPERTS, 1, 1))) for b in blocks]
    order = rng.permuted(np.tile(np.arange(EXPERTS, dtype=np.int32), (n_tokens, 1)), axis=1)
    ids, x = mx.array(order[:, :USED]), normal(n_tokens, HIDDEN)
    weights = mx.full((n_tokens, USED), 1.5 / USED)
    mx.eval(matrices, ids, weights)
    dense = [
        torch.from_numpy(dequantize(b, "mxfp4").astype(np.float32)).cuda().bfloat16()
        for b in blocks
    ]
    gate, up, down = (matrix.repeat(EXPERTS, 1, 1) for matrix in dense)
    small, chosen = on_gpu(x).bfloat16(), on_gpu(ids).long()
    tokens_of = [(chosen == e).nonzero()[:, 0] for e in range(EXPERTS)]

    def peer() -> torch.Tensor:
        sums = torch.zeros_like(small)
        for e, tokens in enumerate(tokens_of):
            if len(tokens):
                inputs = small[tokens]
                hidden = F.silu(inputs @ gate[e].T) * (inputs @ up[e].T)
                sums.index_add_(0, tokens, hidden @ down[e].T, alpha=1.5 / USED)
        return sums

    n_used = np.unique(order[:, :USED]).size
    return Case(
        "experts mxfp4",
        shape,
        lambda: ops.experts(x, ids, weights, *matrices, formats=("mxfp4",) * 3, clamp=10.0),
        peer,
        n_used * sum(matrix.nbytes for matrix in matrices) // EXPERTS + 8 * n_tokens * HIDDEN,
        6 * n_tokens * USED * HIDDEN * EXPERT_HIDDEN,
    )
