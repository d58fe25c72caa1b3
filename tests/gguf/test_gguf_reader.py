"""GGUFFile against the gguf package, and against files that are wrong in every way we know."""

import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    Gguf,
    array,
    every_kind,
    number,
    scalar,
    string,
    tensor,
    text,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gguf
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import Dsv4Error, FileFormatError, UnsupportedModelError
from mlx_dsv4.gguf import GGUFFile, check_tensors, model_card


def opened(path: Path, file: Gguf | bytes) -> GGUFFile:
    path = path / "file.gguf" if path.is_dir() else path
    path.write_bytes(file.encode() if isinstance(file, Gguf) else file)
    return GGUFFile(path)


def test_model_file_equals_what_the_gguf_package_reads(small_model):
    oracle = gguf.GGUFReader(small_model)
    with GGUFFile(small_model) as file:
        fields = {k: v for k, v in oracle.fields.items() if not k.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for key, value in file.metadata.items():
            assert value == fields[key].contents(), key
        assert list(file.tensors) == [t.name for t in oracle.tensors]
        for theirs in oracle.tensors:
            ours = file.tensors[theirs.name]
            assert ours.shape == tuple(int(d) for d in theirs.shape[::-1])
            assert ours.format == theirs.tensor_type.name.lower()
            assert ours.type_id == int(theirs.tensor_type)
            assert (ours.offset, ours.n_bytes) == (theirs.data_offset, theirs.n_bytes)
            assert np.array_equal(file.raw(theirs.name), theirs.data.reshape(-1).view(np.uint8))
        assert file.version == 3
        assert file.alignment == 32
        assert file.n_bytes == small_model.stat().st_size


def test_every_value_type_is_read(tmp_path):
    file = opened(tmp_path, every_kind())
    assert file.metadata["scalar.0"] == 200
    assert file.metadata["scalar.1"] == -100
    assert file.metadata["scalar.4"] == 4_000_000_000
    assert file.metadata["scalar.6"] == 0.5
    assert file.metadata["scalar.7"] is True
    assert file.metadata["scalar.10"] == 1 << 63
    assert file.metadata["scalar.12"] == 1e-300
    assert file.metadata["array.5"] == [-2_000_000_000] * 3
    assert file.metadata["array.7"] == [True] * 3
    assert file.metadata["text"] == "café ｜"
    assert file.metadata["words"] == ["", "a", "Ġthe", "模型", "<｜User｜>"]
    assert file.metadata["nothing"] == []
    assert file.tensors["three"].shape == (1, 2, 3, 4)
    assert file.raw("one").tolist() == list(range(256))


def test_version_2_is_read(tmp_path):
    file = opened(tmp_path, replace(every_kind(), version=struct.pack("<I", 2)))
    assert (file.version, len(file.tensors)) == (2, 3)


def test_alignment_moves_the_tensor_data(tmp_path):
    key = ("general.alignment", scalar(U32, 4096))
    data = bytes(4096) + b"\x01\x02\x03\x04"
    tensors = [tensor("first", [1], 0, 0), tensor("second", [1], 0, 4096)]
    file = opened(tmp_path, Gguf([key], tensors, data, alignment=4096))
    assert file.tensors["first"].offset == 4096
    assert file.raw("second").tolist() == [1, 2, 3, 4]


def test_a_file_without_tensors_opens(tmp_path):
    assert opened(tmp_path, Gguf([("a", scalar(U8, 1))])).tensors == {}


def test_raw_is_a_read_only_view_that_outlives_the_file(small_model):
    with GGUFFile(small_model) as file:
        name = "output_norm.weight"
        view = file.raw(name)
        before = view.copy()
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    assert np.array_equal(view, before)
    with pytest.raises(ValueError, match="is closed"):
        file.raw(name)
    with pytest.raises(KeyError, match="no such"):
        GGUFFile(small_model).raw("no such")


def test_truncation_at_every_byte_is_reported(tmp_path):
    whole = every_kind()
    header, total = len(whole.header()), len(whole.encode())
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole.encode())
    sections = set()
    for size in range(total - 1, -1, -1):
        with path.open("r+b") as handle:
            handle.truncate(size)
        with pytest.raises(FileFormatError) as error:
            GGUFFile(path)
        message = str(error.value)
        assert str(path) in message
        if size >= 4:
            section = message.split(": ")[1].split(" at offset ")
            assert section[1].isdigit(), message
            sections.add(section[0].split(" ")[0])
            assert (section[0].startswith("tensor data")) == (size >= header), message
    assert sections == {"header", "key", "value", "tensor"}


def test_truncation_of_a_model_is_reported(small_model, tmp_path):
    whole = small_model.read_bytes()
    path = tmp_path / "cut.gguf"
    with GGUFFile(small_model) as file:
        last = max(info.offset + info.n_bytes for info in file.tensors.values())
        starts = [info.offset for info in file.tensors.values()]
    sizes = {*range(0, starts[0], 97), *starts, *(start - 1 for start in starts), last - 1}
    for size in sorted(sizes):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError):
            GGUFFile(path)


HUGE = 1 << 62
ONE = [("a", scalar(U8, 1))]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (Gguf(version=struct.pack("<I", 1)), r"header at offset 4: .*must be 2 or 3; got 1"),
        (Gguf(version=struct.pack(">I", 3)), r"must be little endian; it is big endian"),
        (Gguf(n_keys=HUGE), r"header at offset 24: \d+ keys and 0 tensors must fit"),
        (Gguf(n_tensors=HUGE), r"header at offset 24: 0 keys and \d+ tensors must fit"),
        (Gguf(ONE, n_keys=9), r"9 keys and 0 tensors must fit in the remaining"),
        (Gguf([*ONE, *ONE]), r"key 1 at offset .*keys must be unique; 'a' came before"),
        (Gguf([("a", number(U32, 13))]), r"value of 'a' .*number or a string; got value type 13"),
        (Gguf([("a", number(U32, STRING) + number(U64, HUGE))]), r"at most 67108864 bytes"),
        (Gguf([("a", number(U32, STRING) + number(U64, 999))]), r"must hold 999 more bytes"),
        (Gguf([("a", array(U8, b"", HUGE))]), r"at most 16777216 elements"),
        (Gguf([("a", array(U64, b"", 1 << 24))]), r"must hold 134217728 more bytes"),
        (Gguf([("a", array(STRING, b"", 1 << 24))]), r"must hold 134217728 more bytes"),
        (Gguf([("a", array(STRING, number(U64, HUGE), 1))]), r"value of 'a' .* more bytes"),
        (Gguf([("a", array(ARRAY, b"", 1))]), r"number or a string; got an array of arrays"),
        (Gguf([("a", array(77, b"", 0))]), r"number or a string; got value type 77"),
        (Gguf([("a", scalar(U8, 2).replace(b"\0", b"\7", 1))]), r"boolean must be 0 or 1; got 2"),
        (Gguf([("a", array(BOOL, b"\1\5", 2))]), r"a boolean must be 0 or 1; got 5"),
        (Gguf([("a", string(b"ab\xff"))]), r"value of 'a' .*must be UTF-8.* its byte 2"),
        (Gguf([("a", array(STRING, text("x") + text(b"\xc3"), 2))]), r"value of 'a' .*UTF-8"),
        (
            Gguf(ONE, [tensor("t", [], 0, 0)], bytes(32)),
            r"tensor info 0 \('t'\).* 1 to 4 dims; got 0",
        ),
        (Gguf(ONE, [tensor("t", [1] * 5, 0, 0)]), r"a tensor must have 1 to 4 dims; got 5"),
        (Gguf(ONE, [tensor("t", [4, 0], 0, 0)]), r"every dimension must be positive; got \[4, 0\]"),
        (
            Gguf(ONE, [tensor("t", [33], 8, 0)]),
            r"'t'.*row of q8_0 must be a multiple of 32.*got 33",
        ),
        (
            Gguf(ONE, [tensor("t", [8], 0, 0), tensor("t", [8], 0, 32)], bytes(64)),
            r"tensor info 1 .*names must be unique; 't' came before",
        ),
        (
            Gguf(ONE, [tensor("a", [9], 0, 0), tensor("b", [8], 0, 32)], bytes(64)),
            r"data of 'b' at offset 160: must begin after that of 'a', which ends at 164",
        ),
        (
            Gguf(ONE, [tensor("b", [8], 0, 0), tensor("a", [8], 0, 0)], bytes(64)),
            r"data of 'a' at offset 128: must begin after that of 'b'",
        ),
        (Gguf(ONE, [tensor("t", [9], 0, 0)], bytes(32)), r"'t' at offset 96: 36 bytes must lie"),
        (Gguf(ONE, [tensor("t", [8], 0, HUGE)], bytes(32)), r"32 bytes must lie in the file"),
        (Gguf(ONE, [tensor("t", [HUGE] * 4, 0, 0)], bytes(32)), r"bytes must lie in the file"),
        (Gguf(ONE, [tensor("t", [8], 99, HUGE)], bytes(32)), r"must lie in the file"),
        (Gguf(ONE, [tensor("t", [4], 0, 16)], bytes(32)), r"multiple of the alignment 32; got 16"),
        (
            Gguf([("general.alignment", scalar(U32, 48))]),
            r"alignment must be a power of two; got 48",
        ),
        (Gguf([("general.alignment", scalar(U32, 0))]), r"alignment must be a power of two; got 0"),
        (Gguf([("general.alignment", string("32"))]), r"must be a power of two; got '32'"),
        (Gguf([("general.alignment", scalar(F32, 32))]), r"must be a power of two; got 32\.0"),
    ],
)
def test_damaged_headers_name_section_and_offset(file, message, tmp_path):
    with pytest.raises(FileFormatError, match=message):
        opened(tmp_path, file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (struct.pack("<Q", 100) + b'{"__metadata__":{}', "a safetensors file: `mlx-dsv4 convert`"),
        (b"PK\x03\x04rest", r"a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html>", "a web page"),
        (b'{"a": 1}', "JSON text"),
        (b"\x93NUMPY\x01\x00", "a NumPy array"),
        (b"tjgg\x03\x00\x00\x00", "a GGJT file"),
        (b"GGU", r"a file that begins with b'GGU' instead of b'GGUF'"),
        (b"\x7fELF\x02\x01", r"a file that begins with b'.x7fELF' instead of b'GGUF'"),
    ],
)
def test_other_files_are_recognised(content, message, tmp_path):
    with pytest.raises(FileFormatError, match=f"must be a GGUF file; got {message}"):
        opened(tmp_path, content)


def test_directories_are_recognised(tmp_path):
    with pytest.raises(FileFormatError, match=r"a directory$"):
        GGUFFile(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(FileFormatError, match="directory of safetensors files: `mlx-dsv4 convert`"):
        GGUFFile(tmp_path)


def test_an_absent_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "absent.gguf")


def test_an_unknown_type_opens_and_is_refused_on_use(tmp_path):
    tensors = [tensor("known", [8], 0, 0), tensor("odd", [7, 5], 42, 32), tensor("z", [8], 0, 96)]
    file = opened(tmp_path, Gguf(ONE, tensors, bytes(128)))
    info = file.tensors["odd"]
    assert (info.format, info.known, info.n_bytes) == ("type 42", False, 64)
    with pytest.raises(UnsupportedModelError, match=r"tensor 'odd' must be known; got type id 42"):
        file.raw("odd")


@pytest.mark.parametrize("type_id", [4, 31, 40, 41, 42, 43, 1000])
def test_ambiguous_and_removed_ids_are_unknown(type_id, tmp_path):
    file = opened(tmp_path, Gguf(ONE, [tensor("t", [256], type_id, 0)], bytes(512)))
    assert file.tensors["t"].format == f"type {type_id}"


def test_a_full_size_vocabulary_is_read_whole(tmp_path):
    tokens = [f"Ġtoken{i}模" for i in range(129_280)]
    merges = [f"Ġt{i} oken" for i in range(127_741)]
    keys = [
        ("tokens", array(STRING, b"".join(map(text, tokens)), len(tokens))),
        ("merges", array(STRING, b"".join(map(text, merges)), len(merges))),
        ("types", array(I32, number(I32, *range(len(tokens))), len(tokens))),
    ]
    file = opened(tmp_path, Gguf(keys))
    assert file.metadata["tokens"] == tokens
    assert file.metadata["merges"] == merges
    assert file.metadata["types"] == list(range(len(tokens)))


EDITS = st.lists(
    st.tuples(
        st.integers(0, 1 << 20),
        st.sampled_from(["set", "insert", "delete"]),
        st.binary(min_size=1, max_size=8) | st.sampled_from([bytes(8), b"\xff" * 8]),
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(edits=EDITS)
def test_mutated_headers_raise_only_our_errors(edits, small_model, tmp_path):
    raw = bytearray(small_model.read_bytes())
    with GGUFFile(small_model) as file:
        header = min(info.offset for info in file.tensors.values())
    for position, kind, payload in edits:
        at = position % header
        if kind == "insert":
            raw[at:at] = payload
        else:
            raw[at : at + len(payload)] = payload if kind == "set" else b""
    path = tmp_path / "mutated.gguf"
    path.write_bytes(raw)
    # Anything but an error of ours leaves this block and fails the test.
    with suppress(Dsv4Error), GGUFFile(path) as file:
        model_card(file)
        shapes = {name: info.shape for name, info in file.tensors.items()}
        check_tensors(ModelConfig.from_metadata(file.metadata, shapes), file.tensors)
