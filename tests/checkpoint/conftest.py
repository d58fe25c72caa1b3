"""One checkpoint on the disk and its GGUF files, made once."""

from pathlib import Path

import pytest

from mlx_dsv4.checkpoint import convert
from released import Released, make_released


@pytest.fixture(scope="session")
def released() -> Released:
    return make_released()


@pytest.fixture(scope="session")
def checkpoint(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released.write(tmp_path_factory.mktemp("released") / "checkpoint")


@pytest.fixture(scope="session")
def exact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file without rounding: ``dense="bf16"``."""
    path = tmp_path_factory.mktemp("exact") / "exact.gguf"
    convert(checkpoint, path, dense="bf16")
    return path


@pytest.fixture(scope="session")
def usual(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("usual") / "usual.gguf"
    convert(checkpoint, path)
    return path
