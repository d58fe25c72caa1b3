"""The import check: each wrong installation gets told what is installed and what to type."""

import subprocess
import sys
from importlib import metadata

import pytest

from mlx_dsv4 import backend


def test_another_mlx_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.31.0")
    with pytest.raises(
        ImportError, match=r"compiled for mlx 0\.32\.4 and mlx 0\.31\.0 is installed"
    ):
        backend.check_backend()


def test_no_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(
        ImportError, match=r"no mlx is installed: pip install 'mlx\[cpu\]==0\.32\.4'"
    ):
        backend.check_backend()


@pytest.mark.parametrize("package", ["engine", "model", "cache", "ops"])
def test_every_door_says_what_is_missing(package: str) -> None:
    program = f"""
import sys
sys.modules["mlx.core"] = None
import mlx_dsv4.{package}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "the plain mlx wheel has no backend" in done.stderr.splitlines()[-1]


def test_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(ImportError, match=r"plain mlx wheel has no backend.*mlx-dsv4\[cpu\]"):
        backend.check_backend()


def test_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx_dsv4._build_info", None)
    with pytest.raises(ImportError, match=r"mlx_dsv4 is not built: run `make venv`"):
        backend.check_backend()


def test_a_local_build_of_the_same_version_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: f"{backend.built_for()}+local")
    backend.check_backend()
