"""The limits that a model is checked against are those of the kernels."""

from typing import Any

import mlx.core as mx
import pytest

from mlx_dsv4 import ops
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.model.limits import (
    MOST_EXPERTS_USED,
    MOST_ITERATIONS,
    MOST_STREAMS,
    unmet_limits,
)


def route(k: int) -> Any:
    return ops.route_scored(mx.zeros((1, k)), mx.zeros(k), k=k, scale=1.0)


def collapse(streams: int = 4, iterations: int = 1) -> Any:
    mixes = streams * (streams + 2)
    return ops.hyper_pre(
        mx.zeros((1, streams, 16)),
        mx.zeros((mixes, 16 * streams)),
        mx.zeros(mixes),
        mx.zeros(3),
        mx.zeros(16),
        norm_eps=1e-6,
        hyper_eps=1e-6,
        iterations=iterations,
    )


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (route, MOST_EXPERTS_USED),
        (collapse, MOST_STREAMS),
        (lambda iterations: collapse(iterations=iterations), MOST_ITERATIONS),
    ],
    ids=["experts_used", "streams", "sinkhorn_iterations"],
)
def test_a_kernel_takes_the_limit_and_no_more(call: Any, limit: int) -> None:
    mx.eval(call(limit))
    with pytest.raises(ValueError, match=f"{limit}"):
        call(limit + 1)


@pytest.mark.parametrize("numerics", ["official", "plain"])
def test_the_published_model_is_served(numerics: str) -> None:
    assert unmet_limits(V4_FLASH, numerics) == []
