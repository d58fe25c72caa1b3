"""Hyper-connections: collapse the residual streams before a sublayer, expand after it."""

import mlx.core as mx

from mlx_dsv4 import _ext


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
    stream: mx.Stream | mx.Device | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    r"""Collapse the streams into a sublayer's normed input, and weigh the way back.

    .. math:: m = F\,\mathrm{rmsnorm}(\mathrm{flat}(h)),\quad
              x = \mathrm{rmsnorm}(\textstyle\sum_s \mathrm{pre}_s h_s) \cdot \mathrm{norm}

    pre = sigmoid(m[:S] scale0 + base) + hyper_eps; post = 2 sigmoid(m[S:2S] scale1 + base);
    comb is the softmax over the destinations of m[2S:] scale2 + base, made doubly stochastic by
    Sinkhorn steps that begin and end with the columns. The first axis of comb is the source.

    Args:
        streams: ``[T, S, D]`` float32. Residual streams; S in 1..8, D a multiple of 16.
        fn: ``[(2 + S) S, S * D]`` float32. Mixing matrix.
        base: ``[(2 + S) S]`` float32. Added to the scaled products.
        scale: ``[3]`` float32. Factor of the pre, post and comb products.
        norm: ``[D]`` float32. Weight of the sublayer's own RMSNorm.
        norm_eps: Added to the mean square in both norms.
        hyper_eps: Added to pre, to the softmax and to Sinkhorn's sums.
        iterations: Sinkhorn iterations, at least 1; the first one divides columns only.
        stream: Stream or device to run on.

    Returns:
        x ``[T, D]``, post ``[T, S]`` and comb ``[T, S, S]``, float32; the last two are arguments
        of :func:`hyper_post`.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.

    Twin: :func:`mlx_dsv4.reference.hyper_pre`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), manifold-constrained
        hyper-connections.
    """
    return _ext.hyper_pre(
        streams,
        fn,
        base,
        scale,
        norm,
        norm_eps=norm_eps,
        hyper_eps=hyper_eps,
        iterations=iterations,
        stream=stream,
    )


def hyper_post(
    streams: mx.array,
    y: mx.array,
    post: mx.array,
    comb: mx.array,
    *,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    r"""Put a sublayer's output back into the streams and mix them.

    .. math:: h'_d = \mathrm{post}_d\, y + \textstyle\sum_s \mathrm{comb}_{s,d}\, h_s

    The sum runs over the first axis of comb.

    Args:
        streams: ``[T, S, D]`` float32. Residual streams that :func:`hyper_pre` collapsed.
        y: ``[T, D]`` float32. Output of the sublayer.
        post: ``[T, S]`` float32. Weight of y in each stream.
        comb: ``[T, S, S]`` float32. Weight of each source in each destination.
        stream: Stream or device to run on.

    Returns:
        Streams ``[T, S, D]`` float32.

    Raises:
        ValueError: a shape or dtype differs from the table above.

    Twin: :func:`mlx_dsv4.reference.hyper_post`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), manifold-constrained
        hyper-connections.
    """
    return _ext.hyper_post(streams, y, post, comb, stream=stream)


def hyper_head(
    streams: mx.array,
    fn: mx.array,
    base: mx.array,
    scale: mx.array,
    norm: mx.array,
    *,
    norm_eps: float,
    hyper_eps: float,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    r"""Collapse the streams into the normed input of the output product.

    .. math:: \mathrm{pre} = \sigma(F\,\mathrm{rmsnorm}(\mathrm{flat}(h)) \cdot \mathrm{scale}
              + \mathrm{base}) + \epsilon,\quad
              x = \mathrm{rmsnorm}(\textstyle\sum_s \mathrm{pre}_s h_s) \cdot \mathrm{norm}

    Args:
        streams: ``[T, S, D]`` float32. Residual streams; S in 1..8, D a multiple of 16.
        fn: ``[S, S * D]`` float32. Mixing matrix.
        base: ``[S]`` float32. Added to the scaled products.
        scale: ``[1]`` float32. Factor of the products.
        norm: ``[D]`` float32. Weight of the output norm.
        norm_eps: Added to the mean square in both norms.
        hyper_eps: Added to pre.
        stream: Stream or device to run on.

    Returns:
        x ``[T, D]`` float32.

    Raises:
        ValueError: a shape or dtype differs from the table above.

    Twin: :func:`mlx_dsv4.reference.hyper_head`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), manifold-constrained
        hyper-connections.
    """
    return _ext.hyper_head(
        streams,
        fn,
        base,
        scale,
        norm,
        norm_eps=norm_eps,
        hyper_eps=hyper_eps,
        stream=stream,
    )
