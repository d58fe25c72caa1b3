"""Routed experts in the mixes of block formats that are downloaded."""

import mlx.core as mx
import numpy as np
import pytest

from arrays import same_bits, to_numpy
from expert_cases import Case, Formats, bound, expect, make, rows, run

MIXES: list[Formats] = [
    ("iq2_xxs", "iq2_xxs", "q2_k"),  # the smallest files of V4-Flash
    ("q4_k", "q4_k", "q6_k"),
    ("iq1_s", "iq2_s", "iq3_xxs"),
    ("iq4_xs", "q3_k", "q5_k"),  # gate and up need not be alike
]


@pytest.mark.parametrize("formats", [*MIXES, ("q4_k",) * 3], ids="-".join)
@pytest.mark.parametrize("n_tokens", [1, 3, 20])
def test_matches_reference(n_tokens: int, formats: Formats, executor: str) -> None:
    case = Case(n_tokens, 4, 2, 256, 256, formats)
    inputs = make(case)
    error = np.abs(to_numpy(run(case, inputs)) - expect(case, inputs))
    assert (error <= bound(case, inputs)).all()


@pytest.mark.parametrize("formats", MIXES, ids="-".join)
def test_a_token_does_not_depend_on_its_batch(formats: Formats, executor: str) -> None:
    case = Case(12, 3, 2, 256, 256, formats)
    inputs = make(case)
    together = run(case, inputs)
    alone = [run(case, rows(inputs, t, t + 1)) for t in range(case.n_tokens)]
    assert same_bits(together, mx.concatenate(alone))
