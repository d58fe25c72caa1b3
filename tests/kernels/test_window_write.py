"""The ring: which rows are kept, where they lie, and that writing them moves nothing else."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrays import same_bits, shifted, strided, to_numpy
from mlx_dsv4 import ops, reference

WINDOW, N_ROWS, DIM = 8, 5, 32
DTYPES = [mx.bfloat16, mx.float32]


def held(dtype: mx.Dtype, fill: float = np.nan) -> mx.array:
    """A held buffer: rows that nobody wrote hold NaN."""
    buffer = mx.full((WINDOW + N_ROWS, DIM), fill, dtype=dtype)
    mx.eval(buffer)
    return buffer


def make_rows(n_tokens: int, dtype: mx.Dtype, seed: int = 0) -> mx.array:
    values = np.random.default_rng(seed).standard_normal((n_tokens, DIM))
    return mx.array(values.astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [0, 1, WINDOW - 1, WINDOW, 1_000_003])
@pytest.mark.parametrize(
    "n_tokens", [0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1, 5 * WINDOW]
)
def test_write_matches_reference(dtype: mx.Dtype, start: int, n_tokens: int, executor: str) -> None:
    buffer, rows = held(dtype), make_rows(n_tokens, dtype)
    expected = reference.window_write(to_numpy(buffer), to_numpy(rows), start=start, window=WINDOW)
    written = ops.window_write(buffer, rows, start=start, window=WINDOW)
    np.testing.assert_array_equal(to_numpy(written), expected)


def test_positions_a_window_apart_share_a_slot(executor: str) -> None:
    buffer = ops.window_write(held(mx.float32), mx.zeros((1, DIM)), start=0, window=WINDOW)
    buffer = ops.window_write(buffer, mx.ones((1, DIM)), start=WINDOW, window=WINDOW)
    assert buffer[0].tolist() == [1.0] * DIM
    assert np.isnan(to_numpy(buffer[1:])).all()


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(chunks=st.lists(st.integers(0, 3 * WINDOW), min_size=1, max_size=12))
def test_ring_equals_the_tail_of_the_whole_history(chunks: list[int], executor: str) -> None:
    history = make_rows(sum(chunks), mx.bfloat16)
    buffer, start = held(mx.bfloat16), 0
    for n_tokens in chunks:
        buffer = ops.window_write(
            buffer, history[start : start + n_tokens], start=start, window=WINDOW
        )
        start += n_tokens
    kept = range(max(0, start - WINDOW), start)
    for pos in kept:
        assert same_bits(buffer[pos % WINDOW], history[pos])
    assert np.isnan(to_numpy(buffer[len(kept) :])).all()


def test_every_bit_pattern_is_written_as_it_is(executor: str) -> None:
    patterns = mx.arange(65536, dtype=mx.uint32).astype(mx.uint16).view(mx.bfloat16)
    rows = patterns.reshape(128, 512)
    buffer = mx.zeros((130, 512), mx.bfloat16)
    written = ops.window_write(buffer, rows, start=128, window=128)
    assert same_bits(written[:128].view(mx.uint16), rows.view(mx.uint16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 6, 1028])
def test_rows_of_any_width_are_written(dim: int, dtype: mx.Dtype, executor: str) -> None:
    values = np.random.default_rng(1).standard_normal((2, 3, dim)).astype(np.float32)
    buffer, rows = (shifted(mx.array(a).astype(dtype)) for a in values)
    expected = reference.window_write(to_numpy(buffer), to_numpy(rows), start=4, window=2)
    written = ops.window_write(buffer, rows, start=4, window=2)
    np.testing.assert_array_equal(to_numpy(written), expected)


def test_a_write_waits_for_kernels_that_read_the_ring(simulator: str) -> None:
    ring = held(mx.float32, 2.0)[:WINDOW]
    reader = ops.window_rows(
        ring,
        mx.ones(DIM),
        mx.zeros((WINDOW, 0, 2)),
        eps=0.0,
        round_trip="none",
        dtype=mx.float32,
    )
    written = ops.window_write(
        ring, make_rows(3, mx.float32), start=0, window=WINDOW, after=[reader]
    )
    mx.eval(written)  # the simulator refuses a write that was not ordered
    assert to_numpy(reader).tolist() == [[1.0] * DIM] * WINDOW


def test_strided_rows_are_accepted(executor: str) -> None:
    rows = make_rows(3, mx.float32)
    plain = ops.window_write(held(mx.float32), rows, start=6, window=WINDOW)
    views = ops.window_write(held(mx.float32), strided(rows), start=6, window=WINDOW)
    assert same_bits(plain, views)


def test_the_buffer_is_never_copied(executor: str) -> None:
    buffer = held(mx.bfloat16, 0.0)
    address = ops.data_pointer(buffer)
    handles = [buffer]  # every handle stays alive, and so does a reader in flight
    for pos in range(3 * WINDOW):
        reader = mx.exp(handles[-1])
        mx.async_eval(reader)
        rows = mx.full((1, DIM), float(pos), dtype=mx.bfloat16)
        handles.append(
            ops.window_write(handles[-1], rows, start=pos, window=WINDOW, after=[reader])
        )
        mx.async_eval(handles[-1])
    mx.eval(handles)
    assert {ops.data_pointer(handle) for handle in handles} == {address}
    assert all(same_bits(handle, buffer) for handle in handles)


def read_after_every_write(n_writes: int, *, ordered: bool) -> list[float]:
    """What a reader of each handle sees, in a graph that is evaluated at the end, newest first."""
    buffer, readers = held(mx.float32, 0.0), []
    for pos in range(n_writes):
        after = readers[-1:] if ordered else ()
        rows = mx.full((1, DIM), float(pos + 1))
        buffer = ops.window_write(buffer, rows, start=pos, window=WINDOW, after=after)
        readers.append(buffer[:WINDOW].max())
    mx.eval(buffer, *reversed(readers))
    return [reader.item() for reader in readers]


def test_readers_named_in_after_see_the_ring_before_the_write(executor: str) -> None:
    assert read_after_every_write(40, ordered=True) == [float(n) for n in range(1, 41)]


def test_readers_left_out_of_after_see_later_writes() -> None:
    assert read_after_every_write(40, ordered=False) != [float(n) for n in range(1, 41)]


@pytest.mark.parametrize("layout", ["transposed", "broadcast", "strided"])
def test_a_buffer_that_cannot_alias_is_refused_untouched(layout: str, executor: str) -> None:
    square = mx.zeros((DIM, DIM))
    view = {
        "transposed": square.T,
        "broadcast": mx.broadcast_to(square[:1], (DIM, DIM)),
        "strided": mx.zeros((DIM, 2 * DIM))[:, ::2],
    }[layout]
    written = ops.window_write(view, mx.ones((3, DIM)), start=0, window=WINDOW)
    with pytest.raises(RuntimeError, match=r"\[window_write\] attention_kv must be row-contig"):
        mx.eval(written)
    assert to_numpy(view).max() == 0
    assert (mx.ones(3) + 1).tolist() == [2, 2, 2]  # the stream still works


def test_a_slice_of_whole_rows_is_written_in_place(executor: str) -> None:
    buffer = mx.zeros((20, DIM))
    mx.eval(buffer)
    ring = buffer[4:12]
    mx.eval(ops.window_write(ring, mx.ones((2, DIM)), start=7, window=8))
    assert to_numpy(buffer)[:, 0].nonzero()[0].tolist() == [4, 11]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_kv": mx.zeros(8)}, r"attention_kv must be \[W \+ N, D\]; got \(8\)"),
        ({"attention_kv": mx.zeros((8, 4), mx.int32)}, "attention_kv must be bfloat16 or float32"),
        ({"rows": mx.zeros((1, 32), mx.bfloat16)}, "rows must be float32; got bfloat16"),
        ({"rows": mx.zeros((1, 16))}, r"rows must be \[T, D\] with D = 32; got \(1,16\)"),
        ({"window": 0}, r"\[window_write\] window must be in 1\.\.13; got 0"),
        ({"window": 14}, r"window must be in 1\.\.13; got 14"),
        ({"start": -1}, r"start must be in 0\.\.2147483646 for 1 tokens; got -1"),
        ({"start": 2**31 - 1}, r"start must be in 0\.\.2147483646 for 1 tokens"),
    ],
)
def test_bad_write_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {
        "attention_kv": mx.zeros((WINDOW + N_ROWS, DIM)),
        "rows": mx.zeros((1, DIM)),
        "start": 0,
        "window": WINDOW,
    }
    with pytest.raises(ValueError, match=message):
        ops.window_write(**(good | change))
