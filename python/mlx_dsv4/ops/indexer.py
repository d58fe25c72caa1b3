"""Indexer: score the index rows for each query token and select the best."""

import mlx.core as mx

from mlx_dsv4 import _ext


def indexer_queries(
    q: mx.array,
    rotation: mx.array,
    *,
    heads: int,
    round_trip: str,
    dtype: mx.Dtype,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Turn projected indexer queries into what index rows are compared with.

    Tail RoPE, then the round trip: "hadamard_fp4" in official numerics, "none" in plain.

    Args:
        q: ``[T, I * D]`` float32. Projected queries, D a multiple of 16.
        rotation: ``[T, R/2, 2]`` float32. Cosine and sine of each pair of the last R dims.
        heads: I, indexer heads.
        round_trip: "none", "fp8" or "hadamard_fp4".
        dtype: Row dtype of the result, ``mx.bfloat16`` or ``mx.float32``.
        stream: Stream or device to run on.

    Returns:
        ``[T, I, D]`` in ``dtype``.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.
        RuntimeError: at evaluation, D is more than 2048 on the GPU.

    Twin: :func:`mlx_dsv4.reference.indexer_queries`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), the lightning indexer.
    """
    return _ext.indexer_queries(
        q, rotation, heads=heads, round_trip=round_trip, dtype=dtype, stream=stream
    )


def indexer_scores(
    q: mx.array,
    w: mx.array,
    rows: mx.array,
    *,
    start: int,
    ratio: int,
    scale: float,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    r"""Score every index row for every query token.

    .. math:: s_{t,r} = \sum_h \mathrm{relu}(q_{t,h} \cdot k_r)\, w_{t,h}\, \mathrm{scale},\quad
              r < (p_t + 1) // \mathrm{ratio}

    Rows that a token may not see score -inf and are not read. A row whose span the token itself
    closes is visible to it.

    Args:
        q: ``[T, I, D]`` row dtype. Indexer queries.
        w: ``[T, I]`` float32. Head weights, may be negative.
        rows: ``[capacity, D]`` row dtype. Index rows; those nobody sees may hold anything.
        start: Position of the first token.
        ratio: Tokens per span, >= 1.
        scale: Times ``w``.
        stream: Stream or device to run on.

    Returns:
        ``[T, (start + T) // ratio]`` float32.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.

    Twin: :func:`mlx_dsv4.reference.indexer_scores`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), the lightning indexer.
    """
    return _ext.indexer_scores(q, w, rows, start=start, ratio=ratio, scale=scale, stream=stream)


def indexer_topk(
    scores: mx.array,
    *,
    start: int,
    ratio: int,
    k: int,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Select the k best visible rows of each token.

    Highest score first; equal scores go to the lower row; NaN comes after every number,
    -inf included.

    Args:
        scores: ``[T, (start + T) // ratio]`` float32. Values of hidden rows are not read.
        start: Position of the first token.
        ratio: Tokens per span, >= 1.
        k: Rows to select per token, >= 1.
        stream: Stream or device to run on.

    Returns:
        ``[T, k]`` int32, ascending, -1 behind them where fewer rows are visible.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.

    Twin: :func:`mlx_dsv4.reference.indexer_topk`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), the lightning indexer.
    """
    return _ext.indexer_topk(scores, start=start, ratio=ratio, k=k, stream=stream)


def indexer_select(
    q: mx.array,
    w: mx.array,
    rows: mx.array,
    *,
    start: int,
    ratio: int,
    scale: float,
    k: int,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """``indexer_topk(indexer_scores(...))`` with at most 16 MiB of scores in memory at a time.

    One token always fits, however many rows it sees. A token that sees at most k rows gets them
    all, and nothing is scored for it.

    Args:
        q: ``[T, I, D]`` row dtype. Indexer queries.
        w: ``[T, I]`` float32. Head weights, may be negative.
        rows: ``[capacity, D]`` row dtype. Index rows; those nobody sees may hold anything.
        start: Position of the first token.
        ratio: Tokens per span, >= 1.
        scale: Times ``w``.
        k: Rows to select per token, >= 1.
        stream: Stream or device to run on.

    Returns:
        ``[T, k]`` int32, ascending, -1 behind them where fewer rows are visible.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.

    Twin: :func:`mlx_dsv4.reference.indexer_select`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), the lightning indexer.
    """
    return _ext.indexer_select(
        q, w, rows, start=start, ratio=ratio, scale=scale, k=k, stream=stream
    )
