"""The trained weights as the GGUF file that the package ships."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.names import expected_tensors
from mlx_dsv4.gguf.tiny import Formats, write_model
from tools.decoded_tensors import decoded_tensors
from tools.train_demo.prepare import load_vocabulary
from tools.transformers_model import translate, translate_back

FORMATS = Formats("q8_0", "mxfp4", embedding="q8_0", output="q8_0", mixing="f16")


def export(prepared: Path, weights: Path, config: ModelConfig, out: Path) -> None:
    """Write ``weights.pt`` of a training as a GGUF file, whole or not at all."""
    write_model(out, config, trained_weights(weights, config), FORMATS, load_vocabulary(prepared))


def trained_weights(weights: Path, config: ModelConfig) -> dict[str, NDArray[np.generic]]:
    """The arrays of a ``weights.pt`` under GGUF names, float32 or int32, in the file's order."""
    state = torch.load(weights, map_location="cpu", weights_only=True)
    arrays = translate_back({name: tensor.numpy() for name, tensor in state.items()})
    return {
        name: arrays[name].astype(np.int32 if spec.role == "ids" else np.float32)
        for name, spec in expected_tensors(config).items()
    }


def stored_state(path: Path) -> dict[str, torch.Tensor]:
    """What a GGUF file keeps, decoded by the ``gguf`` package, under transformers' names."""
    decoded = translate(decoded_tensors(path))
    return {name: torch.from_numpy(np.array(array)) for name, array in decoded}
