"""A checkpoint turned into a GGUF file, a few megabytes at a time."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.checkpoint.config import read_config
from mlx_dsv4.checkpoint.plan import Plan, make_plan
from mlx_dsv4.checkpoint.shards import read_shards
from mlx_dsv4.checkpoint.vocabulary import read_vocabulary
from mlx_dsv4.config import ARCHITECTURES, ModelConfig, model_architecture
from mlx_dsv4.errors import FileFormatError
from mlx_dsv4.gguf.blocks import n_bytes_of
from mlx_dsv4.gguf.metadata import write_header
from mlx_dsv4.gguf.names import check_tensors, expected_tensors
from mlx_dsv4.gguf.preload import Progress
from mlx_dsv4.gguf.reader import GGUFFile
from mlx_dsv4.gguf.vocabulary import Vocabulary
from mlx_dsv4.paths import followed, naming, usable_path

Dense = Literal["q8_0", "bf16"]
DENSE_FORMATS: tuple[Dense, ...] = ("q8_0", "bf16")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was written, and the tensors of draft parts that were left out."""

    n_tensors: int
    n_bytes: int
    ignored: tuple[str, ...]


def convert(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dense: Dense = "q8_0",
    name: str | None = None,
    on_progress: Progress | None = None,
) -> Conversion:
    """Write a GGUF file of a checkpoint in DeepSeek's layout.

    Everything but the values of weights is checked before the first byte is written. The file is
    written beside ``out`` and renamed when it is complete and on the disk; until then a file that
    is at ``out`` stays as it is, and after an error nothing else is left. If ``out`` is a link, it
    stays, and all this happens where it leads to.

    Args:
        folder: With ``config.json``, ``tokenizer.json`` and safetensors files.
        out: GGUF file; an existing one is replaced.
        dense: What FP8 matrices are stored as. ``bf16`` is exact; ``q8_0`` takes half the bytes.
            FP4 becomes mxfp4 of the same bits; everything else keeps its values.
        name: Of the model; None is the name of the folder, with U+FFFD for what is no UTF-8.
        on_progress: Called with the bytes of weights written, and all of them.

    Raises:
        ValueError: ``dense`` is another format.
        OSError: a file cannot be read or written, or the disk lacks room.
        FileFormatError: a file of the checkpoint is missing, cut off or damaged.
        UnsupportedModelError: another architecture, or DeepSeek-V4.1.
        ConfigError: a number in ``config.json`` breaks a rule.
        TokenizerError: the tokenizer is not DeepSeek's byte-level BPE.
        TensorError: tensors are missing, wrong or unmatched, or hold values that are no weights.
    """
    if dense not in DENSE_FORMATS:
        raise ValueError(f"dense must be {' or '.join(DENSE_FORMATS)}; got {dense!r}")
    folder, out = usable_path(folder), followed(usable_path(out))
    if folder.exists() and not folder.is_dir():
        raise FileFormatError(f"{folder}: must be the folder of a checkpoint; got a file")
    name = name or _name_of(folder) or "DeepSeek-V4"
    config = read_config(folder / "config.json", name)
    model_architecture({"general.architecture": ARCHITECTURES[0], "general.name": name})
    vocabulary = read_vocabulary(folder / "tokenizer.json", config)
    plan = make_plan(folder, config, read_shards(folder), dense)
    if out.exists() and not out.is_file():
        raise OSError(errno.EEXIST, "must be a file, to be replaced", os.fspath(out))
    with naming(out):
        _require_room(out, config, plan)
        with _unfinished(out) as unfinished:
            _write(unfinished, config, vocabulary, plan, on_progress or (lambda done, total: None))
            n_bytes = unfinished.stat().st_size
            unfinished.replace(out)
    return Conversion(len(plan.targets), n_bytes, plan.ignored)


def _name_of(folder: Path) -> str:
    return os.fsencode(os.path.realpath(folder)).rpartition(b"/")[2].decode(errors="replace")


@contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """The file that becomes ``out``, held by this program alone; gone at the end of the block."""
    path = Path(f"{os.fspath(out)}.unfinished")
    with path.open("ab") as held:
        if not _locked(held) or not _is_at(held, path):
            raise OSError(errno.EBUSY, "is being written by another program", os.fspath(path))
        try:
            yield path
        finally:
            if _is_at(held, path):
                path.unlink()


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the path still names an open file: another program may have moved it."""
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _require_room(out: Path, config: ModelConfig, plan: Plan) -> None:
    specs = expected_tensors(config)
    needed = sum(n_bytes_of(target.format, specs[target.name].shape) for target in plan.targets)
    free = shutil.disk_usage(out.parent).free
    if needed > free:
        message = f"the disk must have room for {needed} bytes; {free} are free"
        raise OSError(errno.ENOSPC, message, os.fspath(out))


def _write(
    path: Path,
    config: ModelConfig,
    vocabulary: Vocabulary,
    plan: Plan,
    on_progress: Progress,
) -> None:
    write_header(path, config, vocabulary, {t.name: t.format for t in plan.targets})
    with GGUFFile(path) as file, path.open("r+b") as out:
        check_tensors(config, file.tensors)
        total = sum(info.n_bytes for info in file.tensors.values())
        done = 0
        for target in plan.targets:
            info = file.tensors[target.name]
            out.seek(info.offset)
            for written in _written(out, target.data()):
                done += written
                on_progress(done, total)
            assert out.tell() == info.offset + info.n_bytes, target.name
        out.flush()
        os.fsync(out.fileno())


def _written(out: BinaryIO, pieces: Iterable[NDArray[np.generic]]) -> Iterable[int]:
    for piece in pieces:
        out.write(np.ascontiguousarray(piece).data)
        yield piece.nbytes
