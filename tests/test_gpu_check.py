"""The checks on an NVIDIA GPU, as far as they need none: what is planted, read and reported."""

import json
import re
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tools.gpu_check import run
from tools.gpu_check.bugs import BUGS, ROOT, SHADERS
from tools.gpu_check.checkout import digests
from tools.gpu_check.jobs import (
    TESTS,
    TOOLS,
    Job,
    Outcome,
    distinct_findings,
    execute,
    read_results,
)
from tools.gpu_check.report import as_text, build

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at msl_kernel_hyper_dots_1+0x2f0 in packed_values.h:33
=========     by thread (0,0,0) in block (1,0,0)
=========     Access at 0x7f1a00400 is out of bounds
=========
========= Invalid __global__ read of size 16 bytes
=========     at msl_kernel_hyper_dots_1+0x2f0 in packed_values.h:33
=========     by thread (1,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at msl_kernel_f+0x1290 in hyper.metal:153
=========     and Read access at msl_kernel_f+0x1530 in hyper.metal:171 [288 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
FACTS = {
    "commit": "abc",
    "date": "today",
    "gpu": "none",
    "wall_s": 1,
    "not_collected": [],
    "kernels": {"route": ["route_scored", "route_hashed"]},
}


def clean(tool: str) -> Outcome:
    kernels = {"route_scored", "route_hashed"}
    return Outcome(Job(tool, tool, ["a", "b"]), "done", Counter(PASSED=2), kernels=kernels)


def found(tool: str, finding: str) -> tuple[str, Outcome]:
    return tool, Outcome(Job("bug", tool, ["a"], ("--x",)), "done", findings=[finding])


PLANTED = [
    found("racecheck", "Error: Race at hyper.metal:153"),
    found("memcheck", "Read at rows.h"),
]


def test_planted_bugs_are_mistakes_in_shaders(tmp_path: Path) -> None:
    assert {bug.tool for bug in BUGS} <= set(TOOLS)
    for bug in BUGS:
        bug.plant(tmp_path / bug.name)
        changed = [
            path.name
            for path in SHADERS.glob("*.*")
            if (tmp_path / bug.name / path.name).read_text() != path.read_text()
        ]
        assert changed == [bug.fields()["file"]]
        assert (SHADERS / f"{bug.family()}.metal").exists()


@pytest.mark.parametrize(
    ("tool", "log", "n_findings", "finding"),
    [
        ("memcheck", MEMCHECK, 2, "Invalid __global__ read of size 16 bytes at packed_values.h:33"),
        (
            "racecheck",
            RACECHECK,
            1,
            "Error: Race reported between Write access at msl_kernel_f+... in hyper.metal:153 "
            "at hyper.metal:153",
        ),
    ],
)
def test_a_log_is_read(tmp_path: Path, tool: str, log: str, n_findings: int, finding: str) -> None:
    printed, written = tmp_path / "printed.txt", tmp_path / "log.txt"
    printed.write_text("tests/a.py::b[cuda-1] PASSED [ 50%]\ntests/a.py::c[cuda] FAILED [100%]\n")
    written.write_text(log)
    outcome = Outcome(Job("job", tool, ["a", "b"]), "done")
    read_results(outcome, printed, written, tmp_path / "none")
    assert (outcome.n_findings, outcome.findings) == (n_findings, [finding])
    assert outcome.results == {"PASSED": 1, "FAILED": 1}
    written.write_text("========= COMPUTE-SANITIZER\n")
    read_results(outcome, printed, written, tmp_path / "none")
    assert outcome.status == "no summary"


def test_a_log_without_findings_has_none() -> None:
    assert (
        distinct_findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []
    )


def test_a_clean_run_is_called_clean() -> None:
    planted = [PLANTED[0], found("memcheck", "Invalid read at packed_values.h:33")]
    report = build(FACTS, [clean(tool) for tool in (TESTS, *TOOLS)], planted)
    assert report["clean"]
    assert as_text(report).startswith("clean: commit abc, today, none, 2 kernels, 1 s\n")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"status": "timeout"}, "tests          2/2           0         0        2  1 timeout"),
        ({"results": Counter(PASSED=1, FAILED=1)}, "tests          1/2           1"),
        ({"n_findings": 3, "findings": ["x"]}, "tests: x"),
        ({"kernels": {"route_scored"}}, "tests did not run: route_hashed"),
    ],
)
def test_what_is_wrong_stands_in_the_report(change: dict[str, object], line: str) -> None:
    tests = clean(TESTS)
    for name, value in change.items():
        setattr(tests, name, value)
    planted = [PLANTED[0], found("memcheck", "Invalid read at packed_values.h:33")]
    report = build(FACTS, [tests, *(clean(tool) for tool in TOOLS)], planted)
    assert report["clean"] == ("kernels" in change)
    assert line in as_text(report)


def test_a_bug_counts_as_found_where_a_line_of_a_shader_is_named() -> None:
    report = build(FACTS, [clean(tool) for tool in (TESTS, *TOOLS)], PLANTED)
    assert [bug["found"] for bug in report["planted_bugs"].values()] == [True, False]
    assert not report["clean"]


def test_a_job_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import time; print('a PASSED', flush=True); time.sleep(60)"]
    monkeypatch.setattr("tools.gpu_check.jobs.command", lambda *_: command)
    outcome = execute(Job("job", TESTS, ["a"]), 0, tmp_path, time.monotonic() + 6, {})
    assert (outcome.status, outcome.results) == ("timeout", {"PASSED": 1})
    late = execute(Job("job", TESTS, ["a"]), 0, tmp_path, time.monotonic() + 1, {})
    assert late.status == "not run"
    monkeypatch.setattr("tools.gpu_check.jobs.command", lambda *_: ["/no/program"])
    missing = execute(Job("job", TESTS, ["a"]), 0, tmp_path, time.monotonic() + 60, {})
    assert missing.status.startswith("not started: ")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two sources, where nothing may be run."""
    root = tmp_path / "checkout"
    for path in ("metal/route.metal", "tests/kernels/test_route.py"):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(path)
    monkeypatch.setattr(run, "ROOT", root)
    monkeypatch.setattr(run, "collect", lambda *_: pytest.fail("tests were collected"))
    return root


def packed(root: Path) -> Path:
    pack, facts = root.parent / "pack.tar", root.parent / "pack.json"
    facts.write_text(json.dumps({"commit": "abc", "kernels": {}, "sources": digests(root)}))
    with tarfile.open(pack, "w") as tar:
        tar.add(facts, "pack.json")
    return pack


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/kernels/test_route.py", "another text"),
        ("tests/kernels/test_window.py", "a test that the pack does not know"),
        ("metal/route.metal", None),
    ],
)
def test_a_pack_of_other_files_is_refused(checkout: Path, path: str, text: str | None) -> None:
    pack, out = packed(checkout), checkout.parent / "out"
    if text is None:
        (checkout / path).unlink()
    else:
        (checkout / path).write_text(text)
    message = f"it was packed at abc, and 1 files differ: {path}. Run tools/gpu_check.sh pack again"
    with pytest.raises(SystemExit, match=re.escape(message)):
        run.run(pack, out, 60, 1)
    with pytest.raises(SystemExit, match=re.escape(message)):
        run.bench(pack, out)
    assert not out.exists()


def test_a_pack_of_this_checkout_is_unpacked(checkout: Path) -> None:
    with run.unpacked(packed(checkout)) as (there, facts):
        assert json.loads((there / "pack.json").read_text()).items() >= facts.items()
        assert facts == {"commit": "abc", "kernels": {}}


def test_every_source_is_digested() -> None:
    found = digests(ROOT)
    assert {"metal/route.metal", "csrc/route_metal.cpp", "pyproject.toml"} <= set(found)
    assert {"mslsim/include/metal_stdlib", "CMakeLists.txt"} <= set(found)
    assert {"tests/kernels/test_route.py", "python/mlx_dsv4/ops/route.py"} <= set(found)
    assert len(set(found.values())) > 0.9 * len(found)
