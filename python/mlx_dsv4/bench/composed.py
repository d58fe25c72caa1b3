"""The kernels' maths composed from MLX's ops, as one would write it without them.

In float32, without the rounding of rows; tests compare each with its kernel.
"""

import mlx.core as mx


def attention(q: mx.array, keys: mx.array, sinks: mx.array, rows: mx.array) -> mx.array:
    """``[H, D]``: ``q`` ``[1, H, D]`` over the ``rows`` of ``keys`` ``[N, D]``."""
    chosen = keys[rows]
    logits = mx.concatenate([q[0] @ chosen.T / q.shape[2] ** 0.5, sinks[:, None]], axis=1)
    return mx.softmax(logits, axis=1)[:, :-1] @ chosen


def indexer_select(q: mx.array, w: mx.array, rows: mx.array, k: int) -> mx.array:
    """Ids ``[1, k]`` of the best rows, ascending; ``q`` ``[1, I, D]``, ``w`` ``[1, I]``."""
    scores = w @ mx.maximum(q[0] @ rows.T, 0)
    return mx.sort(mx.argpartition(-scores, k, axis=1)[:, :k], axis=1)


def rms_norm(x: mx.array, eps: float) -> mx.array:
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)


def rotate_tail(rows: mx.array, rotation: mx.array) -> mx.array:
    """``rows`` ``[N, D]`` with the pairs at their end turned by ``rotation`` ``[N, pairs, 2]``."""
    n, pairs = rotation.shape[:2]
    head, tail = rows[:, : -2 * pairs], rows[:, -2 * pairs :].reshape(n, pairs, 2)
    a, b, cos, sin = tail[..., 0], tail[..., 1], rotation[..., 0], rotation[..., 1]
    turned = mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return mx.concatenate([head, turned.reshape(n, -1)], axis=1)


def close_spans(
    values: mx.array, scores: mx.array, norm: mx.array, rotation: mx.array, eps: float
) -> mx.array:
    """Compressed rows ``[N, D]`` of the items ``[N, items, D]`` of N spans."""
    pooled = mx.sum(mx.softmax(scores, axis=1) * values, axis=1)
    return rotate_tail(rms_norm(pooled, eps) * norm, rotation)


def overlapped(spans: mx.array) -> mx.array:
    """Items ``[N, 2 ratio, D]`` of spans ``[N, ratio, 2 D]``: those before, then their own.

    What comes before the first is zero, as a score of no weight would be here.
    """
    dim = spans.shape[2] // 2
    before = mx.concatenate([mx.zeros_like(spans[:1, :, :dim]), spans[:-1, :, :dim]])
    return mx.concatenate([before, spans[:, :, dim:]], axis=1)


def hyper_pre(
    streams: mx.array,
    fn: mx.array,
    base: mx.array,
    scale: mx.array,
    norm: mx.array,
    *,
    norm_eps: float,
    hyper_eps: float,
    iterations: int,
) -> tuple[mx.array, mx.array, mx.array]:
    """As :func:`mlx_dsv4.ops.hyper_pre`."""
    n_tokens, n_streams, _ = streams.shape
    mixes = rms_norm(streams.reshape(n_tokens, -1), norm_eps) @ fn.T
    pre_m, post_m, comb_m = mx.split(mixes, [n_streams, 2 * n_streams], axis=1)
    pre_b, post_b, comb_b = mx.split(base, [n_streams, 2 * n_streams])
    pre = mx.sigmoid(pre_m * scale[0] + pre_b) + hyper_eps
    post = 2 * mx.sigmoid(post_m * scale[1] + post_b)
    comb = (comb_m * scale[2] + comb_b).reshape(n_tokens, n_streams, n_streams)
    comb = mx.softmax(comb, axis=2) + hyper_eps
    comb = comb / (comb.sum(1, keepdims=True) + hyper_eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdims=True) + hyper_eps)
        comb = comb / (comb.sum(1, keepdims=True) + hyper_eps)
    x = mx.sum(pre[:, :, None] * streams, axis=1)
    return rms_norm(x, norm_eps) * norm, post, comb


def hyper_post(streams: mx.array, y: mx.array, post: mx.array, comb: mx.array) -> mx.array:
    """As :func:`mlx_dsv4.ops.hyper_post`."""
    return post[:, :, None] * y[:, None, :] + mx.swapaxes(comb, 1, 2) @ streams


Quantized = tuple[mx.array, mx.array]  # MLX's mxfp4: words and scales


def from_mxfp4_blocks(packed: mx.array) -> Quantized:
    """The same weights as MLX stores them: ``[E, N, K / 8]`` uint32 and ``[E, N, K / 32]`` uint8.

    A block of a GGUF file is a scale and 16 bytes with weights i and 16 + i; a word has weights
    one after another.
    """
    blocks = packed.reshape(*packed.shape[:-1], -1, 17)
    low, high = blocks[..., 1:] & 15, blocks[..., 1:] >> 4
    codes = mx.concatenate([low, high], axis=-1).astype(mx.uint32)
    words = codes.reshape(*packed.shape[:-1], -1, 8) << (4 * mx.arange(8, dtype=mx.uint32))
    return mx.sum(words, axis=-1).astype(mx.uint32), mx.contiguous(blocks[..., 0])


def experts(
    x: mx.array,
    ids: mx.array,
    weights: mx.array,
    gate: Quantized,
    up: Quantized,
    down: Quantized,
    clamp: float,
) -> mx.array:
    """``[T, D]``: the weighted sum of the chosen experts ``ids`` ``[T, k]``, in MXFP4."""

    def product(a: mx.array, matrix: Quantized) -> mx.array:
        words, scales = matrix
        return mx.gather_qmm(a, words, scales, rhs_indices=ids, group_size=32, bits=4, mode="mxfp4")

    spread = x[:, None, None, :]
    gated = mx.minimum(product(spread, gate), clamp)
    gated = gated * mx.sigmoid(gated) * mx.clip(product(spread, up), -clamp, clamp)
    return mx.sum(product(gated, down)[:, :, 0] * weights[:, :, None], axis=1)
