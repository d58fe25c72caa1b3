"""Codes of FP8 and FP4 against torch, a table and the gguf package, to the bit."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import gguf
from mlx_dsv4.checkpoint import encode as module
from mlx_dsv4.checkpoint.encode import decode_fp8, encode, interleave_halves
from mlx_dsv4.checkpoint.shards import StoredTensor, read_shards
from mlx_dsv4.errors import TensorError
from released import E2M1, Stored, bf16, fp4, fp8, safetensors

MXFP4 = gguf.GGMLQuantizationType.MXFP4
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def on_disk(folder: Path, **tensors: Stored) -> dict[str, StoredTensor]:
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return read_shards(folder)


def encoded(format: str, folder: Path, weight: Stored, scale: Stored | None = None) -> bytes:
    tensors = on_disk(folder, w=weight, **({} if scale is None else {"s": scale}))
    return b"".join(piece.tobytes() for piece in encode(tensors["w"], tensors.get("s"), format))


def test_every_fp8_code_at_every_scale_is_torchs():
    codes = np.arange(256, dtype=np.uint8)[None]
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float()
    for scale in range(255):
        found = decode_fp8(codes, np.full((1, 2), scale, np.uint8))
        power = torch.tensor([scale], dtype=torch.uint8).view(torch.float8_e8m0fnu).float()
        assert np.array_equal(found, (values * power).numpy(), equal_nan=True), scale


@pytest.mark.parametrize("shape", [(1, 32), (128, 128), (129, 160), (300, 416), (127, 96)])
def test_fp8_to_bf16_is_exact_in_ragged_blocks(
    shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    weight, scale, values = fp8(np.random.default_rng(0).standard_normal(shape) ** 3)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    assert torch.equal(expected.float(), torch.from_numpy(values))
    for n_elements in (1, 1000, 1 << 20):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", n_elements)
        found = encoded("bf16", tmp_path, weight, scale)
        assert found == expected.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("n_elements", [1, 1000, 1 << 20])
def test_fp8_to_q8_0_is_the_packages(
    n_elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    weight, scale, values = fp8(np.random.default_rng(1).standard_normal((130, 160)))
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", n_elements)
    assert encoded("q8_0", tmp_path, weight, scale) == gguf.quantize(values, Q8_0).tobytes()


@pytest.mark.parametrize("n_elements", [1, 1000, 1 << 20])
def test_fp4_keeps_its_bits_for_every_code_and_scale(
    n_elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", n_elements)
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (255, 64), np.uint8)
    codes[:, :16] = np.arange(16)
    scales = np.repeat(np.arange(255, dtype=np.uint8)[:, None], 2, 1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    weight = Stored("I8", packed.shape, packed.tobytes())
    found = encoded("mxfp4", tmp_path, weight, Stored("F8_E8M0", scales.shape, scales.tobytes()))
    blocks = np.frombuffer(found, np.uint8).reshape(255, 2, 17)
    assert np.array_equal(blocks[..., 0], scales)
    # The block's own bits: element i below element i + 16.
    halves = codes.reshape(255, 2, 2, 16)
    assert np.array_equal(blocks[..., 1:] & 15, halves[:, :, 0])
    assert np.array_equal(blocks[..., 1:] >> 4, halves[:, :, 1])
    with np.errstate(over="ignore"):
        decoded = gguf.dequantize(blocks.reshape(255, 34), MXFP4)
        powers = np.ldexp(np.float32(1), np.arange(-127, 128)).astype(np.float32)
        assert np.array_equal(decoded, E2M1[codes] * powers[:, None])


def test_fp4_of_weights_decodes_to_their_values(tmp_path: Path):
    weight, scale, values = fp4(np.random.default_rng(3).standard_normal((7, 96)))
    found = np.frombuffer(encoded("mxfp4", tmp_path, weight, scale), np.uint8)
    assert np.array_equal(gguf.dequantize(found.reshape(7, -1), MXFP4), values)


def test_neighbours_worked_by_hand():
    # Elements 0 and 1 in the first byte, 16 and 17 in the ninth.
    codes = np.zeros((1, 16), np.uint8)
    codes[0, 0], codes[0, 8] = 0x21, 0x43
    block = interleave_halves(codes, np.array([[120]], np.uint8))
    assert block[0, 0].tolist() == [120, 0x31, 0x42, *[0] * 14]


def test_bf16_and_float32_keep_their_bits(tmp_path: Path):
    array = np.random.default_rng(4).standard_normal((5, 7)).astype(np.float32)
    stored, values = bf16(array)
    assert encoded("bf16", tmp_path, stored) == stored.data
    assert encoded("f32", tmp_path, stored) == values.tobytes()
    plain = Stored("F32", array.shape, array.tobytes())
    assert encoded("f32", tmp_path, plain) == array.tobytes()
    vector = Stored("F32", (35,), array.tobytes())
    assert encoded("f32", tmp_path, vector) == array.tobytes()


def test_files_of_the_safetensors_package_are_read(tmp_path: Path):
    weight, scale, values = fp8(np.random.default_rng(6).standard_normal((130, 160)))
    tensors = {
        "w": torch.frombuffer(bytearray(weight.data), dtype=torch.float8_e4m3fn),
        "s": torch.frombuffer(bytearray(scale.data), dtype=torch.float8_e8m0fnu),
        "ids": torch.arange(6).reshape(3, 2),
    }
    tensors |= {"w": tensors["w"].reshape(weight.shape), "s": tensors["s"].reshape(scale.shape)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = read_shards(tmp_path)
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        **{"w": "F8_E4M3", "s": "F8_E8M0", "ids": "I64"}
    }
    bits = np.concatenate(list(encode(found["w"], found["s"], "bf16"))).astype(np.uint32) << 16
    assert np.array_equal(bits.view(np.float32), values)
    assert found["ids"].codes().view(np.int64).tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("format", "dtype", "code", "scale", "message"),
    [
        (
            "bf16",
            "F8_E4M3",
            0x7F,
            127,
            r"safetensors: w must hold .* row 1, column 2",
        ),
        ("q8_0", "F8_E4M3", 0xFF, 127, "w must hold finite values"),
        ("q8_0", "F8_E4M3", 0x7E, 254, "w must hold finite values"),
        ("q8_0", "F8_E4M3", 0x7E, 160, "w must fit q8_0; .* choose another dense format"),
        ("bf16", "F8_E4M3", 0x01, 0, "w must fit bf16; .* choose another dense format"),
        ("q8_0", "F8_E4M3", 0x38, 255, r"s must hold numbers; got NaN, 255, for block \[0, 0\]"),
        ("mxfp4", "I8", 0x11, 255, r"s must hold numbers; got NaN, 255, for block \[0, 0\]"),
    ],
)
def test_values_that_are_no_weights_are_refused(
    format: str, dtype: str, code: int, scale: int, message: str, tmp_path: Path
):
    codes = np.zeros((2, 32), np.uint8)
    codes[1, 2] = code
    scales = np.full((2, 2) if dtype == "I8" else (1, 1), scale, np.uint8)
    weight = Stored(dtype, codes.shape, codes.tobytes())
    with pytest.raises(TensorError, match=message):
        encoded(format, tmp_path, weight, Stored("F8_E8M0", scales.shape, scales.tobytes()))


@pytest.mark.parametrize(("dtype", "item"), [("BF16", np.uint16), ("F32", np.float32)])
def test_infinities_and_nan_are_refused(dtype: str, item: type, tmp_path: Path):
    array = np.zeros((3, 4), item)
    array[2, 1] = 0x7F80 if dtype == "BF16" else np.nan
    stored = Stored(dtype, array.shape, array.tobytes())
    formats = ("bf16", "f32") if dtype == "BF16" else ("f32",)
    for format in formats:
        with pytest.raises(TensorError, match="row 2, column 1"):
            encoded(format, tmp_path, stored)


def test_values_too_small_for_a_scale_become_zeros(tmp_path: Path):
    codes = np.full((1, 32), 0x01, np.uint8)
    weight = Stored("F8_E4M3", codes.shape, codes.tobytes())
    found = encoded("q8_0", tmp_path, weight, Stored("F8_E8M0", (1, 1), b"\0"))
    decoded = gguf.dequantize(np.frombuffer(found, np.uint8).reshape(1, 34), Q8_0)
    assert not decoded.any()


@pytest.mark.parametrize("format", ["q8_0", "bf16", "mxfp4"])
def test_a_large_matrix_takes_little_memory(format: str, tmp_path: Path):
    rows, columns = 4096, 4096 if format == "mxfp4" else 8192
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 0x7E, (rows, columns), np.uint8)
    shape = (rows, columns // 16) if format == "mxfp4" else (rows // 128, columns // 128)
    weight = Stored("I8" if format == "mxfp4" else "F8_E4M3", codes.shape, codes.tobytes())
    scale = Stored("F8_E8M0", shape, b"\x78" * (shape[0] * shape[1]))
    tensors = on_disk(tmp_path, w=weight, s=scale)
    del weight, scale, codes
    tracemalloc.start()
    n_bytes = sum(piece.nbytes for piece in encode(tensors["w"], tensors["s"], format))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_bytes == rows * columns * {"q8_0": 34 / 32, "bf16": 2, "mxfp4": 34 / 32}[format]
    # An expert of V4-Flash has 8 million values, 4.5 MB; those of this matrix are 16 to 32 MB.
    assert peak < 16e6
