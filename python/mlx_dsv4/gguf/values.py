"""Values of tensors that are decoded when a model is loaded: refused where no model has them."""

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import TensorError
from mlx_dsv4.gguf.blocks import dequantize
from mlx_dsv4.gguf.names import check_expert_ids, compare_tensors, expected_tensors
from mlx_dsv4.gguf.reader import GGUFFile


def finite_values(file: GGUFFile, name: str) -> NDArray[np.float32]:
    """The values of an elementwise tensor.

    A router's bias that is NaN would choose experts by accident, and an infinite one always the
    same: every logit would be a number, and none of them right.

    Raises:
        TensorError: one is not finite; the message names the first.
    """
    info = file.tensors[name]
    values = dequantize(file.raw(name), info.format, info.shape)
    finite = np.isfinite(values)
    if not finite.all():
        place = np.argwhere(~finite)[0].tolist()
        raise TensorError(
            f"{name} must hold finite values; got {values[tuple(place)]} at {place}, "
            f"{finite.size - np.count_nonzero(finite)} of {finite.size} are not",
            wrong=(name,),
        )
    return values


def expert_table(file: GGUFFile, name: str, experts: int) -> NDArray[np.int32]:
    """The token-to-expert table of a hash layer.

    Raises:
        TensorError: it names an expert that the layer does not have.
    """
    ids = file.raw(name).view(np.int32).reshape(file.tensors[name].shape)
    check_expert_ids(name, ids, experts)
    return ids


def value_faults(config: ModelConfig, file: GGUFFile) -> list[str]:
    """One line per tensor whose values keep it from being loaded; reads all that are decoded.

    Args:
        config: Numbers of the model.
        file: Tensors that are missing or wrong in another way are passed over.
    """
    report = compare_tensors(config, file.tensors)
    passed_over = {*report.missing, *report.wrong, *report.unsupported}
    faults = []
    for name, spec in expected_tensors(config).items():
        if spec.role == "matrix" or name in passed_over:
            continue
        try:
            if spec.role == "ids":
                expert_table(file, name, config.experts[int(name.split(".")[1])])
            else:
                finite_values(file, name)
        except TensorError as error:
            faults.append(str(error))
    return faults
