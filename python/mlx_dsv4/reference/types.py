"""The one array type of the references: NumPy, any float or integer dtype."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def rms_norm(x: Array, eps: float, weight: Array | None = None) -> Array:
    """``x / sqrt(mean(x^2) + eps)``, times ``weight`` if there is one; last axis, float64."""
    x = np.asarray(x, np.float64)
    y = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)
    return y if weight is None else y * np.asarray(weight, np.float64)
