"""The report of a run: JSON for machines, text for people."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.gpu_check.bugs import SHADERS
from tools.gpu_check.jobs import TESTS, TOOLS, Outcome

MOST_FINDINGS = 40


def summary(outcomes: Sequence[Outcome], kernels: Sequence[str]) -> dict[str, Any]:
    """The counts of one tool."""
    results = sum((outcome.results for outcome in outcomes), Counter[str]())
    reached = set().union(*(outcome.kernels for outcome in outcomes))
    missing = sorted(set(kernels) - reached)
    return {
        "processes": dict(Counter(outcome.status for outcome in outcomes)),
        "tests_asked": sum(len(outcome.job.tests) for outcome in outcomes),
        "tests": {name.lower(): n for name, n in sorted(results.items())},
        "findings": sum(outcome.n_findings for outcome in outcomes),
        "distinct_findings": list(dict.fromkeys(f for o in outcomes for f in o.findings))[
            :MOST_FINDINGS
        ],
        "kernels_run": len(set(kernels)) - len(missing),
        "kernels_not_run": missing,
        "process_s": round(sum(outcome.seconds for outcome in outcomes), 1),
    }


def is_clean(counts: Mapping[str, Any]) -> bool:
    """Whether every process of a tool ended, every test passed, and nothing was found."""
    return (
        set(counts["processes"]) == {"done"}
        and counts["findings"] == 0
        and counts["tests"].get("passed", 0) == counts["tests_asked"]
    )


def names_a_shader(finding: str) -> bool:
    """Whether a finding has a line of a file in metal/."""
    _, _, place = finding.rpartition(" at ")
    return (SHADERS / place.partition(":")[0]).is_file()


def build(
    facts: dict[str, Any], outcomes: Sequence[Outcome], bugs: Sequence[tuple[str, Outcome]]
) -> dict[str, Any]:
    """The whole report."""
    kernels = [name for names in facts["kernels"].values() for name in names]
    tools = {
        tool: summary([outcome for outcome in outcomes if outcome.job.tool == tool], kernels)
        for tool in (TESTS, *TOOLS)
    }
    planted = {
        what: {
            "tool": outcome.job.tool,
            "found": any(names_a_shader(finding) for finding in outcome.findings),
            "findings": outcome.findings,
            "status": outcome.status,
        }
        for what, outcome in bugs
    }
    clean = (
        not facts["not_collected"]
        and all(map(is_clean, tools.values()))
        and all(b["found"] for b in planted.values())
    )
    return {
        **{key: value for key, value in facts.items() if key != "kernels"},
        "kernels": len(kernels),
        "clean": clean,
        "tools": tools,
        "planted_bugs": planted,
    }


def as_text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        f"{'clean' if report['clean'] else 'NOT CLEAN'}: commit {report['commit']}, "
        f"{report['date']}, {report['gpu']}, {report['kernels']} kernels, {report['wall_s']} s",
        f"{'':<10} {'tests':>11} {'failed':>7} {'findings':>9} {'kernels':>8}  processes",
    ]
    for tool, counts in report["tools"].items():
        tests = counts["tests"]
        failed = sum(n for name, n in tests.items() if name != "passed")
        lines.append(
            f"{tool:<10} {tests.get('passed', 0):>5}/{counts['tests_asked']:<5} {failed:>7} "
            f"{counts['findings']:>9} {counts['kernels_run']:>8}  "
            + ", ".join(f"{n} {status}" for status, n in sorted(counts["processes"].items()))
        )
    for tool, counts in report["tools"].items():
        lines += [f"{tool}: {finding}" for finding in counts["distinct_findings"]]
        if counts["kernels_not_run"]:
            lines.append(f"{tool} did not run: {' '.join(counts['kernels_not_run'])}")
    lines += [f"not collected: {problem}" for problem in report["not_collected"]]
    for what, bug in report["planted_bugs"].items():
        verdict = "found" if bug["found"] else f"NOT FOUND ({bug['status']})"
        lines.append(f"planted bug, {what}: {verdict} by {bug['tool']}")
        lines += [f"    {finding}" for finding in bug["findings"][:4]]
    return "\n".join(lines) + "\n"


def write(folder: Path, report: dict[str, Any]) -> None:
    """Both files."""
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.txt").write_text(as_text(report))
