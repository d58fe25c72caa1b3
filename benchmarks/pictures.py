"""Draws the pictures of docs/performance.md from benchmarks/results; needs matplotlib.

python -m benchmarks.pictures
"""

from typing import Any

import matplotlib

from benchmarks.tables import KERNELS, ROOT, by_case, load, peer_rows

matplotlib.use("svg")
from matplotlib import pyplot as plt

DOCS = ROOT / "docs"
# So that the same results give the same file.
matplotlib.rcParams.update({"svg.hashsalt": "mlx-dsv4", "font.size": 9})


def save(figure: Any, name: str) -> None:
    figure.savefig(DOCS / name, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def roofline() -> None:
    """Operations per byte of each kernel against its rate, under the two ceilings."""
    records = load("kernels")
    first, found = records[0], by_case(records)
    figure, axes = plt.subplots(figsize=(8, 4.6))
    reads, peak = first["read_gb_s"], first["float32_gflop_s"]
    x = [0.05, peak / reads, 2000]
    axes.loglog(x, [min(peak, reads * a) for a in x], color="black", linewidth=1)
    for name, case in KERNELS:
        record = found[name, case]
        if record["flops"]:
            rate = record["flops"] / record["us_p50"] / 1e3
            intensity = record["flops"] / record["bytes"]
            axes.plot([intensity], [rate], "o", markersize=4)
            axes.annotate(f"{name} {case}", (intensity, rate), (4, -3), textcoords="offset points")
    axes.set_xlabel("floating-point operations per byte")
    axes.set_ylabel("GFLOP/s")
    axes.grid(alpha=0.3)
    save(figure, "roofline.svg")


def rates() -> None:
    """Tokens per second over context, of each engine."""
    records = [r for r in peer_rows() if not r["missing"]]
    figure, both = plt.subplots(1, 2, figsize=(9, 3.6))
    for axes, key, title in zip(
        both, ("prefill_tps", "decode_tps"), ("prompt", "decoding"), strict=True
    ):
        for engine in dict.fromkeys(r["engine"] for r in records):
            mine = [r for r in records if r["engine"] == engine]
            ours = engine.startswith("mlx-dsv4")
            axes.plot(
                [r["context"] for r in mine],
                [r[key] for r in mine],
                "o-",
                label=engine,
                linewidth=2 if ours else 1,
                markersize=4,
            )
        axes.set(
            xscale="log", xlabel="tokens of context", title=f"{title}, tokens/s", ylim=(0, None)
        )
        axes.grid(alpha=0.3)
    both[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, "rates.svg")


if __name__ == "__main__":
    roofline()
    rates()
