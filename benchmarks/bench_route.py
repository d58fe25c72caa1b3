"""Router at V4-Flash's 256 experts, 6 per token.

Bound by reading the logits once: 1 KiB per token; at one token the launch dominates.
"""

import mlx.core as mx

from harness import report, time_us
from mlx_dsv4 import ops

EXPERTS, USED = 256, 6


def main() -> None:
    bias = mx.random.normal((EXPERTS,))
    for n_tokens in (1, 32, 512):
        logits = mx.random.normal((n_tokens, EXPERTS))
        mx.eval(logits, bias)
        samples = time_us(lambda x=logits: ops.route_scored(x, bias, k=USED, scale=1.5))
        report("route_scored", f"T{n_tokens}", samples, n_bytes=logits.nbytes)


if __name__ == "__main__":
    main()
