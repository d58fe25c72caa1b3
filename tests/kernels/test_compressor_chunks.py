"""However a session's tokens are cut into calls, rows and state are the same to the bit."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arrays import same_bits, to_numpy
from compressed_session import V4_FLASH_SPANS, Arrays, Spans, make_arrays, run
from mlx_dsv4 import reference

OVERLAP = Spans(ratio=4, c=2, dim=64, rope_dim=16)
PLAIN = Spans(ratio=4, c=1, dim=48, rope_dim=16)
LONG = Spans(ratio=128, c=1, dim=32, rope_dim=8)


def all_at_once(arrays: Arrays) -> tuple[mx.array, mx.array, mx.array]:
    return run(arrays, [len(arrays.value)])


def same(a: tuple[mx.array, ...], b: tuple[mx.array, ...]) -> bool:
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("spans", [OVERLAP, PLAIN], ids=str)
@pytest.mark.parametrize(
    "chunks",
    [[1] * 40, [12, 28], [9, 31], [4] * 10, [3, 1] * 10, [5] * 8, [40]],
    ids=lambda chunks: f"{chunks[0]}x{len(chunks)}",
)
def test_forty_tokens(spans: Spans, chunks: list[int], executor: str) -> None:
    arrays = make_arrays(spans, 40)
    result = run(arrays, chunks)
    assert same(result, all_at_once(arrays))
    assert np.isfinite(to_numpy(result[2])[spans.first_row :]).all()


@pytest.mark.parametrize("spans", V4_FLASH_SPANS, ids=str)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_the_shapes_of_the_model(spans: Spans, dtype: mx.Dtype, executor: str) -> None:
    round_trip = "hadamard_fp4" if spans.dim == 128 else "fp8"
    arrays = make_arrays(spans, 260)
    together = run(arrays, [260], dtype=dtype, round_trip=round_trip)
    cut = run(arrays, [1, 126, 1, 1, 128, 3], dtype=dtype, round_trip=round_trip)
    assert same(together, cut)


@pytest.mark.parametrize("n_tokens", [3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("spans", [OVERLAP, PLAIN], ids=str)
def test_short_prompts(spans: Spans, n_tokens: int, executor: str) -> None:
    arrays = make_arrays(spans, n_tokens)
    assert same(run(arrays, [1] * n_tokens), all_at_once(arrays))


@pytest.mark.parametrize("phase", range(4))
@pytest.mark.parametrize("n_tokens", range(1, 10))
def test_every_phase_and_width(phase: int, n_tokens: int, executor: str) -> None:
    arrays = make_arrays(OVERLAP, 8 + phase + n_tokens)
    assert same(run(arrays, [8 + phase, n_tokens]), all_at_once(arrays))


@pytest.mark.parametrize("first", [127, 128, 129, 256])
@pytest.mark.parametrize("then", [1, 2, 127, 128, 129])
def test_long_spans(first: int, then: int, executor: str) -> None:
    arrays = make_arrays(LONG, first + then)
    assert same(run(arrays, [first, then]), all_at_once(arrays))


@pytest.mark.parametrize("spans", [OVERLAP, PLAIN, LONG], ids=str)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chunks=st.lists(st.integers(0, 140), min_size=1, max_size=6))
def test_random_cuts(spans: Spans, chunks: list[int], executor: str) -> None:
    arrays = make_arrays(spans, sum(chunks))
    assert same(run(arrays, chunks), all_at_once(arrays))


@pytest.mark.parametrize("spans", [OVERLAP, PLAIN], ids=str)
def test_two_sessions_in_turns_equal_two_alone(spans: Spans, executor: str) -> None:
    first, second = make_arrays(spans, 20, seed=3), make_arrays(spans, 20, seed=4)
    alone = [run(first, [1] * 20), run(second, [1] * 20)]
    for _ in range(3):
        assert same(run(first, [1] * 20), alone[0])
        assert same(run(second, [2] * 10), alone[1])


def rows_of_reference(arrays: Arrays, *, forget: bool = False, turn: int = 4) -> np.ndarray:
    """Rows of 40 tokens. ``forget`` empties the previous span's half before each close; rows
    rotate at ``span * turn``."""
    spans = arrays.spans
    state = reference.empty_state(spans.ratio, spans.c * spans.dim, spans.dim)
    rows = np.zeros((spans.first_row + 10, spans.dim))
    frequencies = reference.inverse_frequencies(spans.rope_dim, 1.6e5)
    for span in range(10):
        value, gate, ape, norm, _ = arrays.step(span * spans.ratio, spans.ratio)
        rotation = reference.rotation_table(np.array([span * turn]), frequencies)
        if forget:
            state = reference.empty_state(spans.ratio, spans.c * spans.dim, spans.dim)
        *state, rows = reference.compressor_append(
            value,
            gate,
            ape,
            norm,
            rotation,
            *state,
            rows,
            **spans.numbers(span * spans.ratio),
            dtype="float32",
        )
    return rows[spans.first_row :]


def test_wrong_compressors_disagree(executor: str) -> None:
    arrays = make_arrays(OVERLAP, 40)
    rows = to_numpy(run(arrays, [1] * 40)[2])[OVERLAP.first_row :]

    def gap(expected: np.ndarray) -> list[float]:
        return np.abs(rows - expected).max(1).tolist()

    assert max(gap(rows_of_reference(arrays))) < 1e-5
    lost_overlap = gap(rows_of_reference(arrays, forget=True))
    assert lost_overlap[0] < 1e-5  # span 0 has no previous span
    assert min(lost_overlap[1:]) > 0.1
    at_span = gap(rows_of_reference(arrays, turn=1))
    assert at_span[0] < 1e-5  # position 0 either way
    assert min(at_span[1:]) > 0.1
