"""Groups, tails and starts of the routed experts, where the simulated GPU cuts its work."""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest

from arrays import same_bits, shifted, to_numpy
from expert_cases import Case, bound, expect, make, rows, run
from mlx_dsv4 import ops

Q8_0 = ("q8_0",) * 3
MXFP4 = ("mxfp4",) * 3
# Widths around a fragment, a tile and a threadgroup of both launches; experts around 8 and 32.
RAGGED = [
    Case(8, 9, 2, 544, 32, Q8_0),
    Case(2, 3, 3, 32, 544, Q8_0),
    Case(9, 33, 4, 160, 160, MXFP4),
    Case(33, 31, 1, 32, 32, MXFP4),
    Case(9, 2, 1, 544, 544, MXFP4),
    Case(3, 4, 2, 129, 17),
    Case(10, 4, 2, 129, 65),
]
REALISTIC = [
    Case(1, 8, 6, 2048, 256, MXFP4),
    Case(24, 8, 3, 1024, 256, MXFP4),
]


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_ragged_shapes_match_reference(case: Case, executor: str) -> None:
    inputs = make(case)
    error = np.abs(to_numpy(run(case, inputs)) - expect(case, inputs))
    assert (error <= bound(case, inputs)).all()


# All tokens of a call choose one expert, another is left out, or has one token more than a tile.
@pytest.mark.parametrize("sizes", [(33, 0, 0), (0, 32, 1), (1, 31, 1), (16, 0, 17)], ids=str)
def test_groups_of_any_size(sizes: tuple[int, ...], executor: str) -> None:
    case = Case(33, 3, 1, 32, 32, MXFP4)
    inputs = make(case)
    chosen = np.repeat(np.arange(3), sizes).astype(np.int32)
    inputs.ids[:, 0] = np.random.default_rng(5).permutation(chosen)
    out = run(case, inputs)
    error = np.abs(to_numpy(out) - expect(case, inputs))
    assert (error <= bound(case, inputs)).all()
    alone = [run(case, rows(inputs, t, t + 1)) for t in (0, 32)]
    assert same_bits(out[mx.array([0, 32])], mx.concatenate(alone))


@pytest.mark.realistic
@pytest.mark.parametrize("case", REALISTIC, ids=str)
def test_realistic_shapes_match_reference(case: Case, executor: str) -> None:
    inputs = make(case)
    out = run(case, inputs)
    error = np.abs(to_numpy(out) - expect(case, inputs))
    assert (error <= bound(case, inputs)).all()
    last = rows(inputs, case.n_tokens - 1, case.n_tokens)
    assert same_bits(out[-1:], run(case, last))


@pytest.mark.parametrize("case", REALISTIC, ids=str)
def test_orders_of_threads_change_no_bit(
    case: Case, each_order: Callable[[], Iterator[str]]
) -> None:
    inputs = make(case)
    results = [run(case, inputs) for _ in each_order()]
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("n_tokens", [3, 20])
def test_an_id_that_is_no_expert_makes_its_token_nan(
    n_tokens: int, bad: int, executor: str
) -> None:
    case = Case(n_tokens, 4, 2, 64, 32, MXFP4)
    inputs = make(case)
    clean = to_numpy(run(case, inputs))
    inputs.ids[1, 1] = bad
    out = to_numpy(run(case, inputs))
    assert np.isnan(out[1]).all()
    others = [t for t in range(n_tokens) if t != 1]
    np.testing.assert_array_equal(out[others], clean[others])


@pytest.mark.parametrize("bad", [-1, 4])
def test_no_token_needs_to_have_an_expert(bad: int, executor: str) -> None:
    case = Case(9, 4, 2, 64, 32, MXFP4)
    inputs = make(case)
    inputs.ids[:] = bad
    assert np.isnan(to_numpy(run(case, inputs))).all()


@pytest.mark.parametrize("bad", [-1, 2])
def test_products_of_earlier_tokens_do_not_come_back(bad: int, executor: str) -> None:
    # The temporaries of the first 1024 tokens serve the last one, which has no products.
    case = Case(1025, 2, 1, 32, 32, MXFP4)
    inputs = make(case)
    inputs.ids[-1] = bad
    out = to_numpy(run(case, inputs))
    assert np.isfinite(out[:-1]).all()
    assert np.isnan(out[-1]).all()


@pytest.mark.parametrize("n_tokens", [1, 9])
def test_inputs_may_begin_at_any_element(n_tokens: int, executor: str) -> None:
    case = Case(n_tokens, 4, 2, 64, 32, MXFP4)
    inputs = make(case)
    arrays = [shifted(mx.array(a)) for a in vars(inputs).values()]
    out = ops.experts(*arrays, formats=case.formats, clamp=case.clamp)
    assert same_bits(out, run(case, inputs))


@pytest.mark.parametrize("name", ["gate", "up", "down"])
def test_weights_that_a_gpu_cannot_load_are_refused(name: str, simulator: str) -> None:
    case = Case(1, 4, 2, 64, 32)
    inputs = vars(make(case))
    arrays = {key: mx.array(value) for key, value in inputs.items()}
    arrays[name] = shifted(mx.array(inputs[name]), 2)
    message = rf"\[experts\] {name} must begin at a multiple of 4 bytes of its buffer; got byte 2"
    with pytest.raises(ValueError, match=message):
        mx.eval(ops.experts(**arrays, formats=case.formats, clamp=10.0))
