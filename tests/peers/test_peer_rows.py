"""Medians, marks, ratios and the table of benchmarks/peers, worked by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.peers.engines import OURS
from benchmarks.peers.rows import OTHER, SAME, Agreement, Ratio, Row, measured_row, ratios
from benchmarks.peers.table import ratio_lines, table
from benchmarks.peers.worker import Measurement

EXACT = Agreement(1.0, 0.0, 0.0)


def row(engine: str, prefill: float, decode: float, context: int = 128, **more: object) -> Row:
    once = Measurement(context / prefill, 2 / decode, 2**20, [5, 6], others_cpus=0.08)
    figures = Row(engine, "1.0", context, prefill, decode, 2**20, SAME, EXACT, (once,))
    return replace(figures, **more)


def test_agreement_counts_steps_and_measures_logits() -> None:
    reference = np.array([[0, 3, 1], [2, 0, 1], [0, 0, 5]], np.float32)
    # Step 0 is off by 0.5; step 1 by 2.5 and has another likeliest token; step 2 is exact.
    logits = np.array([[0, 3.5, 1], [2, 0, 3.5], [0, 0, 5]], np.float32)
    found = Agreement.of(logits, reference)
    assert found == Agreement(pytest.approx(2 / 3), worst=2.5, typical=0.5)


def test_rates_are_medians_and_memory_is_the_largest() -> None:
    seconds = [(2.0, 0.5), (1.0, 4.0), (8.0, 1.0)]
    repeats = [
        Measurement(prefill, decode, peak, [5, 6], others_cpus=peak / 100)
        for (prefill, decode), peak in zip(seconds, [10, 30, 20], strict=True)
    ]
    found = measured_row("peer", "1.0", 512, repeats, EXACT, ours=[5, 6])
    assert (found.prefill_tps, found.decode_tps, found.peak_bytes) == (256.0, 2.0, 30)
    assert found.others_cpus == 0.2
    assert found.record()["decode_s"] == [0.5, 4.0, 1.0]


@pytest.mark.parametrize(
    ("ours", "mark"), [([5, 6], SAME), ([5, 7], OTHER), (None, None)], ids=["same", "other", "none"]
)
def test_the_mark_compares_with_our_tokens(ours: list[int] | None, mark: str | None) -> None:
    measurement = Measurement(1.0, 1.0, 1, [5, 6], None)
    assert measured_row("peer", "1.0", 1, [measurement], EXACT, ours).tokens == mark


def test_ratios_take_the_best_peer_of_each_kind_and_context() -> None:
    rows = [
        row(OURS, 300, 60),
        row(f"{OURS} official", 900, 900),
        row("a", 200, 15, tokens=OTHER),
        row("b", 100, 30),
        Row("c", None, 128, missing="not installed: pip install c"),
        row("a", 100, 10, context=512),
    ]
    assert ratios(rows) == [
        Ratio(128, "prefill", 1.5, "a", OTHER),
        Ratio(128, "decode", 2.0, "b", SAME),
    ]


@pytest.mark.parametrize("engine", [OURS, "a"])
def test_a_ratio_says_whether_either_was_disturbed(engine: str) -> None:
    busy = (Measurement(1.0, 1.0, 1, [5], others_cpus=1.0),)
    rows = [row(OURS, 300, 60), row("a", 200, 15)]
    assert not any(ratio.disturbed for ratio in ratios(rows))
    rows = [replace(r, measurements=busy) if r.engine == engine else r for r in rows]
    found = ratios(rows)
    assert [ratio.disturbed for ratio in found] == [True, True]
    assert ratio_lines(found).count("(same tokens, disturbed)") == 2


def test_there_is_no_ratio_without_a_peer() -> None:
    assert ratios([row(OURS, 1, 1), Row("c", None, 128, missing="failed")]) == []


def test_the_table_has_a_line_for_every_row_and_says_why_figures_are_missing() -> None:
    reason = "not installed: pip install flyweight-llm"
    agreement = Agreement(0.9375, 1.5, 0.25)
    rows = [
        row(OURS, 598.37, 132.8),
        row("llama.cpp", 190.13, 53.78, tokens=OTHER, agreement=agreement, peak_bytes=647 * 2**20),
        Row("flyweight-llm", None, 128, missing=reason),
    ]
    header, ours, llama, flyweight = table(rows).splitlines()
    assert header.split()[:3] == ["engine", "version", "context"]
    assert ours.split()[:9] == [OURS, "1.0", "128", "598.4", "132.8", "1", "0.1", "same", "tokens"]
    assert llama.split()[3:7] == ["190.1", "53.8", "647", "0.1"]
    assert llama.split()[7:] == [*OTHER.split(), "94%", "1.5e+00", "2.5e-01"]
    assert flyweight.split(maxsplit=3) == ["flyweight-llm", "-", "128", reason]
    assert len(header) == len(ours) == len(llama)


def test_a_ratio_says_what_the_best_peer_computes() -> None:
    line = ratio_lines([Ratio(128, "decode", 1.48, "flyweight-llm", OTHER)])
    assert line.split(maxsplit=5)[2:] == ["128", "1.48", "x", "flyweight-llm (other tokens)"]


def test_a_record_has_the_keys_of_a_json_line() -> None:
    record = json.loads(json.dumps(row("a", 1, 2).record()))
    assert record["engine"] == "a"
    assert (record["prefill_tps"], record["decode_tps"]) == (1, 2)
    assert (record["top1_share"], record["max_logit_difference"]) == (1.0, 0.0)
    missing = Row("c", None, 128, missing="failed").record()
    assert missing.keys() == record.keys()
    assert missing["prefill_tps"] is missing["top1_share"] is None
