"""Routed experts: a clamped SwiGLU per chosen expert, summed with the router's weights."""

import mlx.core as mx

from mlx_dsv4 import _ext


def experts(
    x: mx.array,
    ids: mx.array,
    weights: mx.array,
    gate: mx.array,
    up: mx.array,
    down: mx.array,
    *,
    formats: tuple[str, str, str],
    clamp: float,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    r"""Run each token through its chosen experts and add the results up.

    .. math:: y_t = \sum_j w_{t,j} D_{e_j}\bigl(\mathrm{silu}(\min(G_{e_j} x_t, c))
              \cdot \mathrm{clip}(U_{e_j} x_t, \pm c)\bigr)

    Terms are added in ascending order of the expert id, so the order of ``ids`` does not matter;
    an id that stands twice counts twice. Only the blocks of chosen experts are read.

    Args:
        x: ``[T, K]`` float32. Tokens.
        ids: ``[T, k]`` int32. Chosen experts of each token, in ``0..E - 1``.
        weights: ``[T, k]`` float32. Weight of each chosen expert.
        gate: ``[E, F, row_bytes]`` uint8. Blocks of F rows of K values per expert.
        up: ``[E, F, row_bytes]`` uint8. Blocks of F rows of K values per expert.
        down: ``[E, K, row_bytes]`` uint8. Blocks of K rows of F values per expert.
        formats: Block formats of gate, up and down: f32, f16, bf16, q8_0 or mxfp4.
        clamp: Bound c of the gate from above and of up on both sides.
        stream: Stream or device to run on.

    Returns:
        ``[T, K]`` float32; NaN for a token that has an id which is no expert.

    Raises:
        ValueError: a shape, dtype, format or number differs from the table above; at
            evaluation, a matrix is not row-contiguous.

    Twin: :func:`mlx_dsv4.reference.experts`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), section 2.1.
    """
    return _ext.experts(
        x, ids, weights, gate, up, down, formats=formats, clamp=clamp, stream=stream
    )
