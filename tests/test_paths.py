"""Paths that no file can have, at every door; read errors say of which file they are."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_dsv4 import Engine, ops
from mlx_dsv4.cache import Cache, CacheStore, load_cache, plan_cache, save_cache
from mlx_dsv4.checkpoint import convert
from mlx_dsv4.checkpoint.shards import read_json
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.gguf.full_size import write_full_size
from mlx_dsv4.gguf.preload import preload
from mlx_dsv4.gguf.tiny import Formats, random_weights, tiny_config, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary
from mlx_dsv4.paths import naming

CONFIG = tiny_config(ratios=(0,), hash_layers=0)
CACHE = Cache(plan_cache(CONFIG, 1))


def write_tiny(path: str) -> None:
    weights = random_weights(CONFIG, 0)
    write_model(path, CONFIG, weights, Formats(), make_vocabulary(CONFIG.vocab))


DOORS: dict[str, Callable[[str], object]] = {
    "Engine.load": Engine.load,
    "GGUFFile": GGUFFile,
    "MappedFile": ops.MappedFile,
    "convert from": lambda path: convert(path, "out.gguf"),
    "convert to": lambda path: convert(".", path),
    "save_cache": lambda path: save_cache(path, CACHE, tokens=[]),
    "load_cache": lambda path: load_cache(path, CACHE.plan, CACHE.fingerprint),
    "CacheStore": lambda path: CacheStore(path, 1 << 20),
    "write_model": write_tiny,
    "write_full_size": lambda path: write_full_size(path, CONFIG),
}


@pytest.mark.parametrize("path", ["\0x", "file\0", "\ud800"], ids=ascii)
@pytest.mark.parametrize("door", DOORS)
def test_a_path_that_no_file_can_have_is_named(
    door: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_bytes(b"GGUF of somebody")
    with pytest.raises(OSError, match="must hold neither null characters nor lone") as caught:
        DOORS[door](path)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="Linux: a file that cannot be read")
@pytest.mark.parametrize(
    "read",
    [GGUFFile, lambda path: preload([Path(path)]), lambda path: read_json(Path(path))],
    ids=["open", "preload", "json"],
)
def test_an_error_of_reading_names_the_file(
    read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/proc/self/mem"
    with pytest.raises(OSError, match="Input/output error") as caught:
        read(path)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, path)


def test_an_error_that_has_a_name_keeps_it() -> None:
    with pytest.raises(FileNotFoundError) as caught, naming(Path("one")):
        os.open("other", os.O_RDONLY)
    assert caught.value.filename == "other"


def test_an_error_about_a_file_that_stands_for_another_names_the_other() -> None:
    with (
        pytest.raises(FileNotFoundError) as caught,
        naming(Path("one"), instead_of=Path("nowhere")),
    ):
        os.open("nowhere", os.O_RDONLY)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "one")
