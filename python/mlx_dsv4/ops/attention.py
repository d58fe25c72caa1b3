"""Attention of many queries over window rows and compressed rows, with sinks."""

import mlx.core as mx

from mlx_dsv4 import _ext


def attention_queries(
    q: mx.array,
    rotation: mx.array,
    *,
    heads: int,
    eps: float,
    dtype: mx.Dtype,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Turn projected queries into what rows are compared with: RMSNorm per head, tail RoPE.

    The norm has no weight.

    Args:
        q: ``[T, H * D]`` float32. Projected queries, D a multiple of 16.
        rotation: ``[T, R/2, 2]`` float32. Cosine and sine of each pair of the last R dims.
        heads: H, query heads.
        eps: Added to the mean square of a head.
        dtype: Row dtype of the result, ``mx.bfloat16`` or ``mx.float32``.
        stream: Stream or device to run on.

    Returns:
        ``[T, H, D]`` in ``dtype``.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.
        RuntimeError: at evaluation, D is more than 2048 on the GPU.

    Twin: :func:`mlx_dsv4.reference.attention_queries`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), attention.
    """
    return _ext.attention_queries(q, rotation, heads=heads, eps=eps, dtype=dtype, stream=stream)


def attention(
    q: mx.array,
    rows: mx.array,
    attention_kv: mx.array,
    sinks: mx.array,
    rotation: mx.array,
    *,
    selected: mx.array | None,
    start: int,
    window: int,
    ratio: int,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    r"""Attend to the rows each query may see and rotate the result back.

    .. math:: o_{t,h} = \frac{\sum_r e^{l_r - m} k_r}{\sum_r e^{l_r - m} + e^{\mathrm{sink}_h - m}},
              \quad l_r = q_{t,h} \cdot k_r / \sqrt{D}

    The query at position p sees window positions ``max(0, p - window + 1) .. p`` and compressed
    rows ``r < (p + 1) // ratio``: the selected ones, or all. Positions before ``start`` are read
    from the ring ``attention_kv[:window]`` as it was before this chunk: write the ring afterwards.

    Args:
        q: ``[T, H, D]`` row dtype. Queries, D a multiple of 16.
        rows: ``[T, D]`` row dtype. Window rows of the chunk itself.
        attention_kv: ``[window + N, D]`` row dtype. The ring, then the compressed rows; those
            nobody sees may hold anything.
        sinks: ``[H]`` float32. Logit per head that enters the softmax and adds no value.
        rotation: ``[T, R/2, 2]`` float32. Cosine and sine of each pair of the last R dims.
        selected: ``[T, K]`` int32. Compressed rows of each query, -1 = none; None = all visible.
        start: Position of the first query.
        window: Rows of the ring.
        ratio: Tokens per span, 0 = no compressed rows.
        stream: Stream or device to run on.

    Returns:
        ``[T, H, D]`` in the dtype of ``q``; NaN for a token whose ``selected`` names a row that
        it may not see.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.
        RuntimeError: at evaluation, D is more than 512 on the GPU.

    Twin: :func:`mlx_dsv4.reference.attention`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), attention.
    """
    return _ext.attention(
        q,
        rows,
        attention_kv,
        sinks,
        rotation,
        selected=selected,
        start=start,
        window=window,
        ratio=ratio,
        stream=stream,
    )
