"""`make seeded-bugs`: runs the test of each seeded bug on a copy of the shaders that has it.

``--page`` writes the list into docs/kernels/testing.md instead.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from seeded_bugs import SEEDED_BUGS, SeededBug

ROOT = Path(__file__).parents[1]
SHADERS = ROOT / "metal"
PAGE = ROOT / "docs/kernels/testing.md"
TABLE = re.compile(r"(?<=<!-- seeded bugs -->\n).*(?=<!-- end -->)", re.DOTALL)
TESTS_FAILED = 1  # pytest's exit code; the others say that no test ran
FINDING = re.compile(r"^E\s+\[(\w+)\] (.*?)(?: at | by |$)", re.MULTILINE)
NO_SHADER = re.compile(r"^E .*(?:Unable to build|ShaderError)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """Whether a test turned red, and why."""

    caught: bool
    by: str


def run_pytest(sources: Path, tests: list[str]) -> tuple[int, str]:
    """Exit code and output of tests on the simulator, with the shaders of a folder."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "sim"]
    command += ["--metal-sources", str(sources), *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def node(bug: SeededBug) -> str:
    return f"tests/kernels/{bug.test}"


def outcome(bug: SeededBug) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "metal"
        shutil.copytree(SHADERS, sources)
        bug.seed(sources)
        code, output = run_pytest(sources, [node(bug)])
    if NO_SHADER.search(output):
        return Outcome(False, "DOES NOT COMPILE")
    if code != TESTS_FAILED:
        return Outcome(False, "SURVIVED" if code == 0 else f"NOT RUN: pytest exits with {code}")
    finding = FINDING.search(output)
    return Outcome(True, f"{finding[1]}: {finding[2]}" if finding else "wrong values")


def table() -> str:
    """The list as the page shows it."""
    rows = [
        f"| {bug.kind} | `{bug.file}` | {bug.what} | `{bug.test.split('::')[1]}` |\n"
        for bug in SEEDED_BUGS
    ]
    head = "| kind | file | mistake | test that fails |\n|---|---|---|---|\n"
    return "".join([head, *rows])


def main() -> None:
    """Seeds every bug, or those of the files named; exits with 1 if a test stays green."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--page", action="store_true", help="write the list into the page")
    parser.add_argument("files", nargs="*", help="files of metal/; all if none is named")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
        return
    bugs = [bug for bug in SEEDED_BUGS if not arguments.files or bug.file in arguments.files]
    code, output = run_pytest(SHADERS, sorted({node(bug) for bug in bugs}))
    if code != 0:
        sys.exit(f"the tests must pass without a bug first\n{output}")
    n_caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for bug, result in zip(bugs, pool.map(outcome, bugs), strict=True):
            n_caught += result.caught
            mark = "caught" if result.caught else "FAILED"
            print(f"{mark}  {bug.file:<18} {bug.what}\n        {result.by}", flush=True)
    print(f"{n_caught} of {len(bugs)} caught")
    sys.exit(n_caught < len(bugs))


if __name__ == "__main__":
    main()
