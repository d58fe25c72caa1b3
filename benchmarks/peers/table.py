"""The comparison as people read it."""

from collections.abc import Sequence

from benchmarks.peers.rows import Ratio, Row

HEADER = (
    "engine",
    "version",
    "context",
    "prefill t/s",
    "decode t/s",
    "peak MiB",
    "others",
    "tokens",
)
COMPARED = ("top-1", "max |Δlogit|", "typical")


def table(rows: Sequence[Row]) -> str:
    """Aligned columns; a row without figures has its reason in their place."""
    lines = [(*HEADER, *COMPARED), *(cells(row) for row in rows)]
    full = [line for line in lines if len(line) == len(lines[0])]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    first = max([widths[0], *(len(line[0]) for line in lines)])
    return "\n".join(aligned(line, [first, *widths[1:]]) for line in lines)


def aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, figures to the right; what follows the last column is as it is."""
    texts = [line[0].ljust(widths[0]), line[1].ljust(widths[1])]
    texts += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=False)]
    return "  ".join(texts).rstrip()


def cells(row: Row) -> tuple[str, ...]:
    named = (row.engine, row.version or "-", str(row.context))
    if row.missing or row.agreement is None or row.peak_bytes is None:
        return (*named, row.missing)
    return (
        *named,
        f"{row.prefill_tps:.1f}",
        f"{row.decode_tps:.1f}",
        f"{row.peak_bytes / 2**20:.0f}",
        "-" if row.others_cpus is None else f"{row.others_cpus:.1f}",
        row.tokens or "-",
        f"{row.agreement.top1:.0%}",
        f"{row.agreement.worst:.1e}",
        f"{row.agreement.typical:.1e}",
    )


def ratio_lines(ratios: Sequence[Ratio]) -> str:
    """One line for each, with what is to be known of the best peer and of the measurement."""
    return "\n".join(
        f"{ratio.what:<7} @ {ratio.context:<6} {ratio.ratio:5.2f} x {ratio.peer}{remarks(ratio)}"
        for ratio in ratios
    )


def remarks(ratio: Ratio) -> str:
    found = [ratio.peer_tokens or "", "disturbed" if ratio.disturbed else ""]
    return f" ({', '.join(filter(None, found))})" if any(found) else ""
