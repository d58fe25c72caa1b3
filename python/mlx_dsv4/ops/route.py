"""Router: which experts a token goes to, and with what weight."""

import mlx.core as mx

from mlx_dsv4 import _ext


def route_scored(
    logits: mx.array,
    bias: mx.array,
    *,
    k: int,
    scale: float,
    stream: mx.Stream | mx.Device | None = None,
) -> tuple[mx.array, mx.array]:
    r"""Choose the ``k`` experts of highest score plus bias.

    .. math:: s_{t,e} = \sqrt{\mathrm{softplus}(x_{t,e})},\quad
              w_{t,j} = s_{t,e_j} / (\textstyle\sum_i s_{t,e_i} + 10^{-20}) \cdot \mathrm{scale}

    The bias chooses and does not weigh. Equal keys go to the lower id; NaN comes after every
    number.

    Args:
        logits: ``[T, E]`` float32. Router outputs.
        bias: ``[E]`` float32. Load-balancing bias of each expert.
        k: Experts per token, 1..16.
        scale: What the weights of one token add up to.
        stream: Stream or device to run on.

    Returns:
        ids ``[T, k]`` int32, best first, and weights ``[T, k]`` float32.

    Raises:
        ValueError: a shape, dtype or number differs from the table above.

    Twin: :func:`mlx_dsv4.reference.route_scored`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), section 2.1.
    """
    return _ext.route_scored(logits, bias, k=k, scale=scale, stream=stream)


def route_hashed(
    logits: mx.array,
    tokens: mx.array,
    table: mx.array,
    *,
    scale: float,
    stream: mx.Stream | mx.Device | None = None,
) -> tuple[mx.array, mx.array]:
    """Look the experts of each token up by its id; the logits only weigh them.

    An expert that a table row names twice is returned, and counts, twice. A token that is still
    being computed and turns out to be no row of the table, and a row that names an expert above
    ``E - 1``, give NaN weights.

    Args:
        logits: ``[T, E]`` float32. Router outputs.
        tokens: ``[T]`` int32. Token ids, each below ``V``.
        table: ``[V, k]`` int32. Expert ids of every token id, each below ``E``.
        scale: What the weights of one token add up to.
        stream: Stream or device to run on.

    Returns:
        ids ``[T, k]`` int32 in stored order, and weights ``[T, k]`` float32.

    Raises:
        ValueError: a shape, dtype or number differs from the table above, or a known token is
            no row of the table.

    Twin: :func:`mlx_dsv4.reference.route_hashed`.
    Source: DeepSeek-V4 technical report (arXiv 2606.19348), section 2.1 (hash routing).
    """
    return _ext.route_hashed(logits, tokens, table, scale=scale, stream=stream)
