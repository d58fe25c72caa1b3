"""Hyper-connections: collapse the residual streams before a sublayer, expand after it."""

import numpy as np

from mlx_dsv4.reference.types import Array, rms_norm, sigmoid


def hyper_pre(
    streams: Array,
    fn: Array,
    base: Array,
    scale: Array,
    norm: Array,
    *,
    norm_eps: float,
    hyper_eps: float,
    iterations: int,
) -> tuple[Array, Array, Array]:
    """The sublayer's normed input and the weights that put its output back.

    m = fn @ rmsnorm(flat streams); pre = sigmoid(m[:S] * scale0 + base) + eps;
    post = 2 sigmoid(m[S:2S] * scale1 + base); comb = Sinkhorn(softmax over the destination of
    m[2S:] * scale2 + base, + eps); x = rmsnorm(sum_s pre[s] * stream[s]) * norm.

    streams ``[T, S, D]``, fn ``[(2 + S) S, S * D]``, base ``[(2 + S) S]``, scale ``[3]``,
    norm ``[D]`` -> x ``[T, D]``, post ``[T, S]``, comb ``[T, S (source), S (destination)]``.
    """
    n_tokens, n_streams, _ = streams.shape
    flat = rms_norm(streams.reshape(n_tokens, -1), norm_eps)
    m = flat @ np.asarray(fn, np.float64).T
    pre_m, post_m, comb_m = np.split(m, [n_streams, 2 * n_streams], axis=1)
    pre_b, post_b, comb_b = np.split(np.asarray(base, np.float64), [n_streams, 2 * n_streams])
    pre = sigmoid(pre_m * scale[0] + pre_b) + hyper_eps
    post = 2 * sigmoid(post_m * scale[1] + post_b)
    comb = (comb_m * scale[2] + comb_b).reshape(n_tokens, n_streams, n_streams)
    comb = np.exp(comb - comb.max(2, keepdims=True))
    comb = sinkhorn(comb / comb.sum(2, keepdims=True) + hyper_eps, hyper_eps, iterations)
    x = np.einsum("ts,tsd->td", pre, streams.astype(np.float64))
    return rms_norm(x, norm_eps, norm), post, comb


def sinkhorn(comb: Array, eps: float, iterations: int) -> Array:
    """Columns divided by their sum, then ``iterations - 1`` times rows, columns."""
    comb = comb / (comb.sum(1, keepdims=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdims=True) + eps)
        comb = comb / (comb.sum(1, keepdims=True) + eps)
    return comb


def hyper_post(streams: Array, y: Array, post: Array, comb: Array) -> Array:
    """``stream'[d] = post[d] * y + sum_s comb[s, d] * stream[s]``."""
    mixed = np.einsum("tsd,tsi->tdi", comb.astype(np.float64), streams.astype(np.float64))
    return post.astype(np.float64)[:, :, None] * y.astype(np.float64)[:, None, :] + mixed


def hyper_head(
    streams: Array,
    fn: Array,
    base: Array,
    scale: Array,
    norm: Array,
    *,
    norm_eps: float,
    hyper_eps: float,
) -> Array:
    """Collapse the streams before the output product.

    pre = sigmoid(fn @ rmsnorm(flat streams) * scale + base) + eps; the weighted sum, RMS-normed
    with ``norm``. streams ``[T, S, D]``, fn ``[S, S * D]``, base ``[S]``, scale ``[1]``.
    """
    flat = rms_norm(streams.reshape(streams.shape[0], -1), norm_eps)
    pre = sigmoid(flat @ np.asarray(fn, np.float64).T * scale[0] + base) + hyper_eps
    return rms_norm(np.einsum("ts,tsd->td", pre, streams.astype(np.float64)), norm_eps, norm)
