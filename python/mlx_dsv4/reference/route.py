"""Router: which experts a token goes to, and with what weight."""

import numpy as np

from mlx_dsv4.reference.types import Array


def expert_scores(logits: Array) -> Array:
    """``sqrt(softplus(logits))`` in its stable form."""
    x = np.asarray(logits, np.float64)
    return np.asarray(np.sqrt(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))))


def _weights(scores: Array, ids: Array, scale: float) -> Array:
    chosen = np.take_along_axis(scores, ids.astype(np.int64), 1)
    return chosen / (chosen.sum(1, keepdims=True) + 1e-20) * scale


def route_scored(logits: Array, bias: Array, *, k: int, scale: float) -> tuple[Array, Array]:
    """The k experts of highest score + bias, best first; the bias only chooses.

    Equal: the lower id. NaN after every number. weight = score / (sum of the chosen scores)
    * scale. logits ``[T, E]``, bias ``[E]`` -> ids ``[T, k]`` int32, weights ``[T, k]``.
    """
    scores = expert_scores(logits).astype(np.float32)
    keys = scores + np.asarray(bias, np.float32)
    order = [
        np.lexsort((np.arange(row.size), -np.nan_to_num(row, nan=0), np.isnan(row)))[:k]
        for row in keys
    ]
    ids = np.stack(order).astype(np.int32)
    return ids, _weights(scores.astype(np.float64), ids, scale)


def route_hashed(
    logits: Array, tokens: Array, table: Array, *, scale: float
) -> tuple[Array, Array]:
    """The experts that ``table`` lists for each token id, in stored order.

    An expert named twice counts twice. logits ``[T, E]``, tokens ``[T]``, table ``[V, k]``.
    """
    ids = np.asarray(table, np.int32)[tokens]
    return ids, _weights(expert_scores(logits), ids, scale)
