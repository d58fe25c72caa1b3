"""Products with matrices stored as GGUF blocks, and rows of them."""

import mlx.core as mx

from mlx_dsv4 import _ext


def matmul(
    x: mx.array,
    weight: mx.array,
    *,
    format: str,
    groups: int = 1,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    r"""Multiply tokens by a packed matrix; each row multiplies its own group of ``x``.

    .. math:: y_{t,n} = \sum_k x_{t,\,gK + k} W_{n,k}, \quad g = \lfloor n / (N / G) \rfloor

    The weights are read where they lie and never copied. A token's result does not depend on
    the other tokens of the call, to the bit.

    Args:
        x: ``[T, groups * K]`` float32 or bfloat16. Tokens.
        weight: ``[N, row_bytes]`` uint8. Blocks of N rows of K values, row-contiguous.
        format: Block format, as ggml names it: f32, f16, bf16, q8_0 or mxfp4.
        groups: How many equal parts the rows of ``weight`` and the columns of ``x`` have.
        stream: Stream or device to run on.

    Returns:
        ``[T, N]`` float32.

    Raises:
        ValueError: a shape, dtype, format or number differs from the table above; at
            evaluation, ``weight`` is not row-contiguous.

    Twin: :func:`mlx_dsv4.reference.matmul`.
    Source: ggml block formats, as the ``gguf`` package decodes them.
    """
    return _ext.matmul(x, weight, format=format, groups=groups, stream=stream)


def embed(
    tokens: mx.array,
    weight: mx.array,
    *,
    format: str,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Decode the rows of a packed matrix that ``tokens`` name.

    A token that is still being computed when the op is called and turns out to be no row gives a
    row of NaN: a kernel that failed later would fail whoever waits for the stream next.

    Args:
        tokens: ``[T]`` int32. Row of each token, in ``0..V - 1``.
        weight: ``[V, row_bytes]`` uint8. Blocks of V rows of K values, row-contiguous.
        format: Block format, as ggml names it: f32, f16, bf16, q8_0 or mxfp4.
        stream: Stream or device to run on.

    Returns:
        ``[T, K]`` float32.

    Raises:
        ValueError: a shape, dtype or format differs from the table above, or a known token is
            no row; at evaluation, ``weight`` is not row-contiguous.

    Twin: :func:`mlx_dsv4.reference.embed`.
    Source: ggml block formats, as the ``gguf`` package decodes them.
    """
    return _ext.embed(tokens, weight, format=format, stream=stream)
