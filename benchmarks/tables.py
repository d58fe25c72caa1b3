"""Writes the tables of README.md and docs/performance.md from benchmarks/results.

    python -m benchmarks.tables

A table stands between `<!-- results: NAME -->` and `<!-- end -->`.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
MACHINE, GPU = "zen5-2", "h200"
BLOCK = re.compile(r"(<!-- results: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Record = dict[str, Any]

# Of decoding one token and of a prompt's slice, in the order of a layer.
KERNELS = (
    ("hyper_pre", "T1"),
    ("window_rows", "T1 fp8"),
    ("compressor_append", "ratio 4 T1 closes a span"),
    ("compressor_append", "ratio 128 T1 closes a span"),
    ("indexer_scores", "T1 262144 rows"),
    ("indexer_topk", "T1 262144 rows"),
    ("attention", "T1 128+512 rows"),
    ("matmul", "q8_0 T1 N4096 K4096"),
    ("route_scored", "T1"),
    ("experts", "mxfp4/mxfp4 T1"),
    ("hyper_post", "T1"),
    ("attention", "T512 128+512 rows"),
    ("indexer_scores", "T64 8192 rows"),
    ("matmul", "q8_0 T128 N4096 K4096"),
    ("experts", "mxfp4/mxfp4 T128"),
)
# A kernel, its case, and those of the same maths composed from MLX's ops.
COMPOSED = (
    ("attention", "T1 128+512 rows", "attention of mx ops", "T1 128+512 rows"),
    ("indexer_select", "T1 65536 rows", "select of mx ops", "T1 65536 rows"),
    ("compressor_append", "ratio 4 T2048", "spans of mx ops", "ratio 4 T2048"),
    ("compressor_append", "ratio 128 T2048", "spans of mx ops", "ratio 128 T2048"),
    ("hyper_pre", "T1", "hyper_pre of mx ops", "T1"),
    ("experts", "mxfp4/mxfp4 T1", "experts of mx ops", "mxfp4/mxfp4 T1"),
)


def load(kind: str, machine: str = MACHINE) -> list[Record]:
    """The records of a kind of figures."""
    lines = (RESULTS / f"{machine}.{kind}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """In Markdown: the first column to the left, the others to the right."""
    head = list(head)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def by_case(records: list[Record]) -> dict[tuple[str, str], Record]:
    return {(r["kernel"], r["case"]): r for r in records if "us_p50" in r}


def time_words(us: float) -> str:
    return f"{us:.0f} µs" if us < 1e3 else f"{us / 1e3:.1f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def kernels() -> str:
    found = by_case(load("kernels"))
    rows = []
    for name, case in KERNELS:
        r = found[name, case]
        gb_s, rate = r["bytes"] / r["us_p50"] / 1e3, r["flops"] / r["us_p50"] / 1e3
        near = "operations" if gb_s / r["read_gb_s"] < r["ceiling_share"] - 1e-3 else "bytes"
        rows.append(
            (
                *(f"`{name}` {case}", time_words(r["us_p50"])),
                *(f"{gb_s:.1f}", f"{rate:.0f}" if rate else ""),
                *(f"{r['ceiling_share']:.0%} of {near}", f"{r['evals']:.1f}"),
            )
        )
    head = ("kernel", "time", "GB/s", "GFLOP/s", "of the nearer ceiling", "empty ops")
    return table(head, rows)


def ceilings() -> str:
    first = load("kernels")[0]
    words = (
        f"{first['isa']}, {first['threads']} threads: reads {first['read_gb_s']:.0f} GB/s, copies "
        f"{first['copy_gb_s']:.0f} GB/s, {first['float32_gflop_s']:.0f} GFLOP/s in float32, "
        f"{first['bfloat16_gflop_s']:.0f} with a bfloat16 factor widened for each; an empty op "
        f"takes {first['eval_us']:.0f} µs.\n"
    )
    return words


def composed() -> str:
    found = by_case(load("kernels"))
    rows = []
    for name, case, other, other_case in COMPOSED:
        ours, theirs = found[name, case]["us_p50"], found[other, other_case]["us_p50"]
        rows.append(
            (f"`{name}` {case}", time_words(ours), time_words(theirs), f"{theirs / ours:.0f} ×")
        )
    return table(("kernel", "ours", "composed from MLX's ops", "factor"), rows)


def peer_rows() -> list[Record]:
    return [r for r in load("peers") if "missing" in r]


def peers() -> str:
    rows = []
    for r in peer_rows():
        if r["missing"]:
            rows.append((r["engine"], str(r["context"]), r["missing"], "", "", "", ""))
            continue
        rows.append(
            (
                *(r["engine"], str(r["context"])),
                *(f"{r['prefill_tps']:.0f}", f"{r['decode_tps']:.1f}"),
                *(f"{r['peak_bytes'] / 2**20:.0f} MiB", r["tokens"]),
                f"{r['typical_logit_difference']:.0e}",
            )
        )
    head = (
        "engine",
        "context",
        "prompt, tokens/s",
        "decoding",
        "peak memory",
        "",
        "typical Δlogit",
    )
    return table(head, rows)


def peer_ratios() -> str:
    """Ours over the best of the others, in each respect."""
    records = [r for r in peer_rows() if not r["missing"]]
    rows = []
    for context in sorted({r["context"] for r in records}):
        here = [r for r in records if r["context"] == context]
        ours = next(r for r in here if r["engine"] == "mlx-dsv4")
        others = [r for r in here if not r["engine"].startswith("mlx-dsv4")]
        cells = [str(context)]
        for rate in ("prefill_tps", "decode_tps"):
            best = max(others, key=lambda r: float(r[rate]))
            cells.append(f"{ours[rate] / best[rate]:.2f} × {best['engine']}")
        least = min(others, key=lambda r: int(r["peak_bytes"]))
        cells.append(f"{ours['peak_bytes'] / least['peak_bytes']:.2f} × {least['engine']}")
        rows.append(cells)
    return table(
        ("context", "prompt: as fast as", "decoding: as fast as", "memory: as much as"), rows
    )


def growth() -> str:
    records = [r for r in load("growth") if "us_p50" in r and "context" in r]
    rows = []
    for context in sorted({r["context"] for r in records}):
        us = {r["measurement"]: r["us_p50"] for r in records if r["context"] == context}
        rows.append((f"{context:,}", time_words(us["decode"]), time_words(us["prefill"])))
    return table(("tokens before", "a decoded token", "a token of a prompt"), rows)


def growth_fit() -> str:
    rows = [
        (
            {"decode": "a decoded token", "prefill": "a token of a prompt"}[r["measurement"]],
            *(f"{r['a_us'] / 1e3:.1f} ms", f"{r['b_us'] * 1e3:.2f} µs"),
            *(f"{r['ceiling_b_us'] * 1e3:.2f} µs", f"{r['ceiling_b_us'] / r['b_us']:.0%}"),
        )
        for r in load("growth")
        if "b_us" in r
    ]
    return table(("", "at 0 tokens", "per 1000 more", "at the ceilings", "share"), rows)


def profile() -> str:
    records = [r for r in load("decode") if "share" in r and r["share"] >= 0.01]
    rows = [
        (
            r["measurement"],
            r["case"].removeprefix("@ d"),
            str(r["calls"] or ""),
            f"{r['share']:.0%}",
        )
        for r in records
    ]
    return table(("kernel", "context", "calls", "share"), rows)


def decode() -> str:
    records = load("decode")
    steps = {r["case"]: r for r in records if r["measurement"] == "step"}
    rows = []
    for r in records:
        if r["measurement"] != "decode":
            continue
        step = steps["@ d" + r["case"].split("@ d")[1]]
        rows.append(
            (
                *(r["case"], f"{r['tokens_per_s']:.1f}", f"{r['ceiling_share']:.0%}"),
                *(f"{step['python_us'] / step['us_p50']:.1%}", str(step["nodes"])),
            )
        )
    head = ("", "tokens/s", "of the nearer ceiling", "Python's share", "graph nodes")
    return table(head, rows)


def gpu() -> str:
    rows = []
    for r in load("gpu", GPU):
        other = time_words(r["torch_us"]) if r["torch_us"] else ""
        near = max(r["share_of_copy"], r["share_of_bf16"])
        rows.append(
            (
                *(f"`{r['kernel']}` {r['case']}", time_words(r["us"]), other),
                *(f"{r['gb_s']:.0f}", f"{r['tflop_s']:.2f}", f"{near:.1%}"),
            )
        )
    return table(("kernel", "time", "PyTorch", "GB/s", "TFLOP/s", "of the nearer ceiling"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "ceilings": ceilings,
    "kernels": kernels,
    "composed": composed,
    "peers": peers,
    "peer-ratios": peer_ratios,
    "growth": growth,
    "growth-fit": growth_fit,
    "decode": decode,
    "profile": profile,
    "gpu": gpu,
}


def with_tables(page: str) -> str:
    """The page with each of its tables as the results have it."""
    return BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}{block[3]}", page)


def main() -> None:
    for path in PAGES:
        path.write_text(with_tables(path.read_text()))


if __name__ == "__main__":
    main()
