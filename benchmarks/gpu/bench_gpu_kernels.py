"""Times the kernels' cubins on an NVIDIA GPU, beside PyTorch and the ceilings of the same run.

Times are those of the GPU (events around repeated launches of each kernel, buffers resident), so
that neither launches nor copies count; small inputs stay in its caches. `tools/gpu_check.sh bench`
runs it from the pack. A JSON line per call goes to --json.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "metal"), str(ROOT / "tests"), str(Path(__file__).parent)]

from gpu_cases import Case, of_any_context, of_context  # noqa: E402

from executors import running_on, simulated_extension  # noqa: E402

DECODE_CONTEXTS = (8 << 10, 128 << 10, 1 << 20)
PREFILL_TOKENS, PREFILL_CONTEXT = 2048, 32 << 10
DECODE_REPEATS, PREFILL_REPEATS = 50, 3


def torch_us(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds of a call on the GPU, the mean of some."""
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(1e3 * begin.elapsed_time(end) / repeats)


def kernels_us(case: Case, repeats: int) -> dict[str, float]:
    """Microseconds of each kernel that a call launches, by name; those of one name are added."""
    controls = simulated_extension().controls
    controls.set_repeats(repeats)
    controls.clear_launches()
    mx.eval(case.call())
    times: dict[str, float] = {}
    for launch in controls.launches():
        times[launch["kernel"]] = times.get(launch["kernel"], 0.0) + launch["gpu_us"]
    return times


def ceilings() -> dict[str, float]:
    """GB/s of a copy of 2 GiB, and TFLOP/s of a bfloat16 product."""
    source, n = torch.empty(2**29, device="cuda"), 8192
    target = torch.empty_like(source)
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return {
        "copy_gb_s": 2 * source.nbytes / torch_us(lambda: target.copy_(source), 20) / 1e3,
        "bf16_tflop_s": 2 * n**3 / torch_us(lambda: a @ b, 20) / 1e6,
    }


def cases() -> Iterator[tuple[Case, int]]:
    """What is measured, and how often."""
    for case in of_any_context(1):
        yield case, DECODE_REPEATS
    for context in DECODE_CONTEXTS:
        for case in of_context(1, context):
            yield case, DECODE_REPEATS
    for case in of_any_context(PREFILL_TOKENS):
        yield case, PREFILL_REPEATS
    for case in of_context(PREFILL_TOKENS, PREFILL_CONTEXT):
        yield case, PREFILL_REPEATS


def measured(case: Case, repeats: int, limits: dict[str, float]) -> dict[str, Any]:
    """The figures of a call."""
    kernels = kernels_us(case, repeats)
    us = sum(kernels.values())
    gb_s, tflop_s = case.n_bytes / us / 1e3, case.n_flops / us / 1e6
    return {
        "kernel": case.name,
        "case": case.shape,
        "us": round(us, 2),
        "torch_us": round(torch_us(case.peer, repeats), 2) if case.peer else None,
        "gb_s": round(gb_s, 2),
        "tflop_s": round(tflop_s, 3),
        "share_of_copy": round(gb_s / limits["copy_gb_s"], 4),
        "share_of_bf16": round(tflop_s / limits["bf16_tflop_s"], 4),
        "kernels_us": {name: round(value, 2) for name, value in kernels.items()},
        **{name: round(value, 1) for name, value in limits.items()},
        "gpu": torch.cuda.get_device_name(),
    }


def main() -> None:
    """Measures everything."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--json", type=Path, default=Path("build/gpu_check/bench.jsonl"))
    path: Path = parser.parse_args().json
    path.parent.mkdir(parents=True, exist_ok=True)
    limits = ceilings()
    print(f"{torch.cuda.get_device_name()}: {limits}", flush=True)
    with running_on("cuda"), path.open("w") as lines:
        for case, repeats in cases():
            figures = measured(case, repeats, limits)
            print(json.dumps(figures), file=lines, flush=True)
            print(
                f"{case.name:<18} {case.shape:<24} {figures['us']:>10} us  torch "
                f"{figures['torch_us']} us  {figures['gb_s']:>8} GB/s "
                f"({figures['share_of_copy']:.1%})  {figures['tflop_s']:>8} TFLOP/s",
                flush=True,
            )
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
