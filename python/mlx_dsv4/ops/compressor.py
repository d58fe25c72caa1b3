"""Compressor: fold tokens into the open span, close spans into compressed rows."""

import mlx.core as mx

from mlx_dsv4 import _ext


def compressor_append(
    value: mx.array,
    gate: mx.array,
    ape: mx.array,
    norm: mx.array,
    rotation: mx.array,
    state_value: mx.array,
    state_score: mx.array,
    rows: mx.array,
    *,
    start: int,
    ratio: int,
    first_row: int,
    eps: float,
    round_trip: str,
    stream: mx.Stream | mx.Device | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    r"""Append the tokens of positions ``[start, start + T)``; write a row per span they close.

    .. math:: s_{t,f} = g_{t,f} + \mathrm{ape}_{t \bmod r,f},\quad
              \mathrm{pooled}_f = \textstyle\sum_i e^{s_{i,f}} v_{i,f} / \sum_i e^{s_{i,f}}

    Span n becomes row ``first_row + n``: the pooled value in row dtype, RMSNorm, tail RoPE,
    round trip. With c = 2 spans overlap: the sum also runs over the previous span's tokens,
    through columns ``[0, D)``, and over the span's own through ``[D, 2 D)``. All three results
    are handles on the SAME memory as the arguments. The state and the rows do not depend on how
    the tokens are cut into calls, to the bit.

    Args:
        value: ``[T, c * D]`` float32, c 1 or 2. What is pooled.
        gate: ``[T, c * D]`` float32. Score of each value before ``ape``.
        ape: ``[ratio, c * D]`` float32. Score offset by place in the span.
        norm: ``[D]`` float32. RMSNorm weight.
        rotation: ``[n, R/2, 2]`` float32. Cosine and sine at position ``span * ratio`` of the n
            spans that close, in order.
        state_value: ``[c * ratio, c * D]`` float32, held. Values of the previous span (c = 2)
            and of the open one; 0 where no token is.
        state_score: ``[c * ratio, c * D]`` float32, held. Their scores; -inf where no token is.
        rows: ``[N, D]`` bfloat16 or float32, D a multiple of 16, held. Compressed rows.
        start: Position of the first token.
        ratio: Tokens per span.
        first_row: Row of span 0.
        eps: Added to the mean square.
        round_trip: ``"none"``, ``"fp8"`` or ``"hadamard_fp4"``.
        stream: Stream or device to run on.

    Returns:
        (state_value, state_score, rows): the handles that later calls take.

    Raises:
        ValueError: a shape, dtype or number differs from the table above, or a row would not
            fit into ``rows``.
        RuntimeError: at evaluation, a held array is not row-contiguous, or D is more than 2048 on
            the GPU; nothing is written.

    Twin: :func:`mlx_dsv4.reference.compressor_append`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), section 2.2.
    """
    return _ext.compressor_append(
        value,
        gate,
        ape,
        norm,
        rotation,
        state_value,
        state_score,
        rows,
        start=start,
        ratio=ratio,
        first_row=first_row,
        eps=eps,
        round_trip=round_trip,
        stream=stream,
    )
