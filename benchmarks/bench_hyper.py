"""Hyper-connections at V4-Flash's 4 streams of 4096.

`hyper_pre` is bound by reading fn once per call (1.5 MiB), `hyper_post` by reading and writing
the streams (64 KiB each way per token).
"""

import mlx.core as mx

from harness import report, time_us
from mlx_dsv4 import ops

STREAMS, DIM = 4, 4096
SETTINGS = {"norm_eps": 1e-6, "hyper_eps": 1e-6}


def main() -> None:
    rows = (2 + STREAMS) * STREAMS
    fn = mx.random.normal((rows, STREAMS * DIM)) / (STREAMS * DIM) ** 0.5
    base, scale, norm = mx.random.normal((rows,)), mx.ones(3), mx.ones(DIM)
    head_fn, head_base, head_scale = fn[:STREAMS], base[:STREAMS], scale[:1]
    for n_tokens in (1, 32, 512):
        streams = mx.random.normal((n_tokens, STREAMS, DIM))
        y = mx.random.normal((n_tokens, DIM))
        post = mx.random.uniform(shape=(n_tokens, STREAMS))
        comb = mx.random.uniform(shape=(n_tokens, STREAMS, STREAMS))
        mx.eval(streams, y, post, comb, fn, base, head_fn, head_base, head_scale)
        case = f"T{n_tokens}"
        samples = time_us(
            lambda h=streams: ops.hyper_pre(h, fn, base, scale, norm, iterations=20, **SETTINGS)
        )
        n_bytes = fn.nbytes + streams.nbytes + y.nbytes
        report("hyper_pre", case, samples, n_bytes=n_bytes, n_flops=2 * rows * streams.size)
        samples = time_us(lambda h=streams, y=y, p=post, c=comb: ops.hyper_post(h, y, p, c))
        n_bytes = 2 * streams.nbytes + y.nbytes
        n_flops = 2 * (STREAMS + 1) * streams.size
        report("hyper_post", case, samples, n_bytes=n_bytes, n_flops=n_flops)
        samples = time_us(
            lambda h=streams: ops.hyper_head(h, head_fn, head_base, head_scale, norm, **SETTINGS)
        )
        n_bytes = head_fn.nbytes + streams.nbytes + y.nbytes
        report("hyper_head", case, samples, n_bytes=n_bytes, n_flops=2 * STREAMS * streams.size)


if __name__ == "__main__":
    main()
