"""Where an engine runs."""

from pathlib import Path

import mlx.core as mx
import pytest

from mlx_dsv4 import Engine, ops
from mlx_dsv4.errors import DeviceError

without_metal = pytest.mark.skipif(mx.metal.is_available(), reason="this machine has a GPU")


def test_an_unknown_device_names_the_choices() -> None:
    with pytest.raises(ValueError, match="device must be auto, cpu or gpu; got tpu"):
        ops.kernel_device("tpu")  # type: ignore[arg-type]


@without_metal
def test_auto_is_the_cpu_where_there_is_no_metal() -> None:
    assert ops.kernel_device() == ops.kernel_device("cpu") == mx.Device(mx.cpu, 0)


@without_metal
def test_a_gpu_that_is_not_there_is_refused_before_the_file_is_opened(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="device must be auto or cpu here; got gpu"):
        Engine.load(tmp_path / "no such file", device="gpu")


@pytest.mark.metal
def test_auto_is_the_gpu_where_there_is_metal() -> None:
    assert ops.kernel_device() == ops.kernel_device("gpu") == mx.Device(mx.gpu, 0)
