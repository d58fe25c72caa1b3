"""Window rows: the latent of each token, and the ring that keeps the newest of them."""

from collections.abc import Sequence

import mlx.core as mx

from mlx_dsv4 import _ext


def window_rows(
    kv: mx.array,
    norm: mx.array,
    rotation: mx.array,
    *,
    eps: float,
    round_trip: str,
    dtype: mx.Dtype,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    r"""Make the row of every token: RMSNorm, tail RoPE, FP8 round trip, row dtype.

    .. math:: \mathrm{row}_t = \mathrm{round}\bigl(\mathrm{rope}_t(
              \mathrm{norm} \odot x_t / \sqrt{\mathrm{mean}(x_t^2) + \mathrm{eps}})\bigr)

    The round trip leaves the rotated tail alone; a row does not depend on the others.

    Args:
        kv: ``[T, D]`` float32, D a multiple of 16. Latent of each token.
        norm: ``[D]`` float32. RMSNorm weight.
        rotation: ``[T, R/2, 2]`` float32. Cosine and sine of each pair of the last R dims.
        eps: Added to the mean square.
        round_trip: ``"none"``, or ``"fp8"`` (then D - R is a multiple of 64).
        dtype: ``mx.bfloat16`` or ``mx.float32``.
        stream: Stream or device to run on.

    Returns:
        rows ``[T, D]`` of ``dtype``.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.
        RuntimeError: at evaluation, D is more than 2048 on the GPU.

    Twin: :func:`mlx_dsv4.reference.window_rows`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), section 2.2.
    """
    return _ext.window_rows(
        kv, norm, rotation, eps=eps, round_trip=round_trip, dtype=dtype, stream=stream
    )


def window_write(
    attention_kv: mx.array,
    rows: mx.array,
    *,
    start: int,
    window: int,
    after: Sequence[mx.array] = (),
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Put the rows of positions ``[start, start + T)`` into the ring, in place.

    Position p lives in slot ``p % window``; only the newest ``window`` rows are written. The
    result is another handle on the SAME memory, whoever else holds it: a handle taken before
    the write sees it too. Readers that must see the ring as it was go into ``after``, and
    readers that must see the write take the returned handle.

    Args:
        attention_kv: ``[W + N, D]`` bfloat16 or float32. Held buffer; its first ``window`` rows
            are the ring.
        rows: ``[T, D]`` of the same dtype. Rows of the tokens.
        start: Position of ``rows[0]``.
        window: Ring rows, 1..W + N.
        after: Outputs of readers of an earlier handle; the write happens after they are made.
        stream: Stream or device to run on.

    Returns:
        The handle on ``attention_kv`` that later readers and writers take.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.
        RuntimeError: at evaluation, ``attention_kv`` is not row-contiguous; nothing is written.

    Twin: :func:`mlx_dsv4.reference.window_write`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), section 2.2.
    """
    return _ext.window_write(
        attention_kv, rows, start=start, window=window, after=after, stream=stream
    )
