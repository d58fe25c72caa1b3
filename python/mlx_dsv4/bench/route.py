"""Router at V4-Flash's 256 experts, 6 per token.

Bound by reading the logits once: 1 KiB per token; at one token the launch dominates.
"""

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us

EXPERTS, USED = 256, 6


def measure(report: Report, n_tokens: int) -> None:
    bias, logits = mx.random.normal((EXPERTS,)), mx.random.normal((n_tokens, EXPERTS))
    mx.eval(logits, bias)
    samples = time_us(lambda: ops.route_scored(logits, bias, k=USED, scale=1.5))
    report("route_scored", f"T{n_tokens}", samples, n_bytes=logits.nbytes)


def run(report: Report) -> None:
    for n_tokens in (1, 32, 512):
        measure(report, n_tokens)
