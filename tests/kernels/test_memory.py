"""Held buffers and mapped bytes: sizes, addresses, and what is refused."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_dsv4 import ops


@pytest.fixture
def mapped(tmp_path: Path) -> ops.MappedFile:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(200)))
    return ops.MappedFile(path)


def test_a_view_is_the_bytes_of_the_file(mapped: ops.MappedFile) -> None:
    assert mapped.n_bytes == 200
    view = mapped.view(17, (3, 5))
    np.testing.assert_array_equal(np.array(view), np.arange(17, 32).reshape(3, 5))
    assert ops.data_pointer(mapped.view(18, (1,))) == ops.data_pointer(view) + 1


def test_a_view_outlives_its_file_object(mapped: ops.MappedFile, tmp_path: Path) -> None:
    view = mapped.view(100, (100,))
    del mapped
    (tmp_path / "bytes").unlink()
    assert np.array(view).tolist() == list(range(100, 200))


@pytest.mark.parametrize(
    ("offset", "shape", "message"),
    [
        (7, (1,), r"bytes must lie in 8\.\.200 of .*; got 7\.\.8"),
        (100, (101,), r"bytes must lie in 8\.\.200 of .*; got 100\.\.201"),
        (8, (65536,) * 4, r"shape must have dims >= 0 and at most 2\^48 bytes; got"),
        (8, (-1, 5), r"shape must have dims >= 0 and at most 2\^48 bytes; got \(-1,5\)"),
    ],
)
def test_bytes_outside_are_refused(
    mapped: ops.MappedFile, offset: int, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mapped.view(offset, shape)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/tmp", "/nowhere"])
def test_what_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=name):
        ops.MappedFile(name)


def test_uninitialized_buffers_have_their_shape() -> None:
    buffer = ops.uninitialized((3, 16), mx.bfloat16)
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((3, 16), mx.bfloat16, 96)
    for shape in ((1 << 30, 1 << 30, 16), (-1,)):
        with pytest.raises(ValueError, match=r"shape must have dims >= 0 and at most 2\^48 bytes"):
            ops.uninitialized(shape, mx.float32)


def test_the_address_of_a_lazy_array_is_refused() -> None:
    with pytest.raises(ValueError, match="a must be evaluated"):
        ops.data_pointer(mx.array([1.0]) + 1)
