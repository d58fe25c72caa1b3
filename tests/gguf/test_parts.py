"""Split files: written by the gguf package, read as one; what does not fit together is named."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf_bytes import U32, Gguf, scalar, string, tensor

import gguf
from mlx_dsv4.errors import FileFormatError
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.gguf.blocks import block_shape
from mlx_dsv4.gguf.metadata import add_config, add_vocabulary
from mlx_dsv4.gguf.vocabulary import make_vocabulary
from mlx_dsv4.model import Model, load_weights
from tiny_models import random_tokens, tiny_model

TINY = tiny_model()


def split(folder: Path, *, small_first: bool) -> list[Path]:
    """The tiny model in parts of 30 tensors, by the gguf package."""
    writer = gguf.GGUFWriter(
        folder / "tiny.gguf", "deepseek4", split_max_tensors=30, small_first_shard=small_first
    )
    add_config(writer, TINY.config)
    add_vocabulary(writer, make_vocabulary(TINY.config.vocab))
    with GGUFFile(TINY.path) as file:
        for name, info in file.tensors.items():
            kind = gguf.GGMLQuantizationType(info.type_id)
            if info.format in ("f32", "i32"):
                dtype = np.float32 if info.format == "f32" else np.int32
                writer.add_tensor(name, file.raw(name).view(dtype).reshape(info.shape))
            else:
                elements, n_bytes = block_shape(info.format)
                rows = (*info.shape[:-1], info.shape[-1] // elements * n_bytes)
                writer.add_tensor(name, file.raw(name).reshape(rows), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return sorted(folder.glob("tiny-*.gguf"))


@pytest.fixture(scope="module", params=[False, True], ids=["even", "metadata first"])
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return split(tmp_path_factory.mktemp("parts"), small_first=request.param)


def test_parts_are_read_as_the_whole(parts: list[Path]) -> None:
    assert len(parts) > 3
    with GGUFFile(parts[0]) as file, GGUFFile(TINY.path) as whole:
        assert file.paths == parts
        assert file.n_bytes == sum(path.stat().st_size for path in parts)
        assert file.tensors.keys() == whole.tensors.keys()
        assert {info.part for info in file.tensors.values()} >= {1, len(parts) - 1}
        for name in whole.tensors:
            np.testing.assert_array_equal(file.raw(name), whole.raw(name))


def test_a_split_model_gives_the_same_bits(parts: list[Path]) -> None:
    with GGUFFile(parts[0]) as file:
        model = Model(load_weights(file))
    tokens = random_tokens(TINY.config, 20)
    whole = TINY.load("official")
    states = [np.array(m.prefill(tokens, m.make_cache(20))) for m in (model, whole)]
    np.testing.assert_array_equal(*states)
    assert model.fingerprint() == whole.fingerprint()
    assert mx.array_equal(model.logits(mx.array(states[0])), whole.logits(mx.array(states[1])))


def test_another_part_names_the_first(parts: list[Path]) -> None:
    with pytest.raises(
        FileFormatError, match=rf"part 2 of {len(parts)}: open the first, .*00001-of"
    ):
        GGUFFile(parts[1])


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    away = parts[2].with_suffix(".away")
    parts[2].rename(away)
    try:
        with pytest.raises(FileNotFoundError, match=parts[2].name):
            GGUFFile(parts[0])
    finally:
        away.rename(parts[2])


def place(number: int, count: int, more: int | None = None) -> list[tuple[str, bytes]]:
    keys = [("split.no", scalar(U32, number)), ("split.count", scalar(U32, count))]
    return keys + ([] if more is None else [("split.tensors.count", scalar(U32, more))])


ONE = [tensor("t", [32], 0, 0)]
OTHER = [tensor("u", [32], 0, 0)]
FULL, FULL_OF_3 = Gguf(place(0, 2), ONE, bytes(128)), Gguf(place(0, 2, 3), ONE, bytes(128))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            Gguf(place(0, 2, 3), ONE, bytes(128)),
            Gguf(place(1, 2), OTHER, bytes(128)),
            "hold 3 .*got 2",
        ),
        (
            Gguf(place(0, 2), ONE, bytes(128)),
            Gguf(place(1, 2), ONE, bytes(128)),
            "'t' must be in one",
        ),
        (Gguf(place(0, 2)), Gguf(place(0, 2)), "must be part 2 of 2; got part 1 of 2"),
        (Gguf(place(0, 2)), Gguf(place(1, 3)), "must be part 2 of 2; got part 2 of 3"),
        (Gguf(place(0, 2)), Gguf(), "must be part 2 of 2; got part 1 of 1"),
        (Gguf(place(0, 2)), Gguf(magic=b"none"), "must be a GGUF file"),
        (Gguf(place(0, 2)), Gguf(place(1, 2), OTHER, bytes(64)), "128 bytes must lie in the file"),
        (Gguf(place(0, 3)), Gguf(place(1, 3)), r"part 1 of 3 must be called NAME-00001-of-00003"),
        (Gguf(place(2, 2)), Gguf(place(1, 2)), r"split\.no must be in 0\.\.1; got 2"),
        (Gguf([("split.count", string("2"))]), Gguf(), "split.count must be an integer; got '2'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, first: Gguf, second: Gguf, message: str
) -> None:
    for number, part in enumerate((first, second), 1):
        (tmp_path / f"a-{number:05}-of-00002.gguf").write_bytes(part.encode())
    with pytest.raises(FileFormatError, match=message):
        GGUFFile(tmp_path / "a-00001-of-00002.gguf")


def test_a_part_of_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Gguf(place(0, 2)).encode())
    with pytest.raises(FileFormatError, match=r"must be called NAME-00001-of-00002\.gguf"):
        GGUFFile(path)


def test_a_split_of_one_part_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Gguf(place(0, 1)).encode())
    assert GGUFFile(path).paths == [path]
