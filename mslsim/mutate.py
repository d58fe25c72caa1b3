"""Runs the tests of each kernel family on every mutant of its shaders: ``make mutate``.

A mutant is killed when a test fails on it, and survives when none does; then the tests could not
tell if the shader were wrong there. What changes nothing that could be observed is listed with its
reason in tests/mslsim/equivalent_mutants.txt. Outcomes are kept in build/mutants, so that a run
goes on where another stopped and repeats only what a change of a shader or of a test concerns.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from queue import Queue

from mslsim.cache import digest
from mslsim.exceptions_list import read_exceptions
from mslsim.mutations import Mutant, shader_mutants

ROOT = Path(__file__).parents[1]
SHADERS = ROOT / "metal"
BUILD = ROOT / "build/mutants"
EQUIVALENTS = ROOT / "tests/mslsim/equivalent_mutants.txt"
KILLED, SURVIVED, COMPILER, STUCK = "killed", "SURVIVED", "does not compile", "never ends"
TESTS_PASSED, TESTS_FAILED = 0, 1  # exit codes of pytest; others say that no test ran
LIMIT_S = 3600  # of the tests of one mutant
# Headers of several families with tests of their own, which run on mutants of the header alone.
TESTS_OF_HEADERS = {"row_math.h": ["test_rounding.py"]}


def included(path: Path) -> set[str]:
    """The names of a shader and of every header that it includes."""
    names = {path.name}
    for name in re.findall(r'^#include "(.+)"', path.read_text(), re.M):
        names |= included(path.parent / name)
    return names


def families_of_files() -> dict[str, list[str]]:
    """The kernel families whose shaders hold each file."""
    families: dict[str, list[str]] = {}
    for path in sorted(SHADERS.glob("*.metal")):
        for name in included(path):
            families.setdefault(name, []).append(path.stem)
    return families


def files_of_tests(families: Iterable[str], mutated: str) -> list[Path]:
    """The files with the tests of kernel families and of the mutated file.

    They are named after a family, or after an op of one.
    """
    tests = ROOT / "tests/kernels"
    ops = ROOT / "python/mlx_dsv4/ops"
    paths = [tests / name for name in TESTS_OF_HEADERS.get(mutated, [])]
    for family in families:
        names = [family, *re.findall(r"^def (\w+)", (ops / f"{family}.py").read_text(), re.M)]
        paths += [path for name in names for path in sorted(tests.glob(f"test_{name}*.py"))]
    return list(dict.fromkeys(paths))


def state_of(families: Iterable[str], file: str, mutated: str) -> str:
    """A name for what decides whether a mutant of a file of these families is killed.

    Args:
        families: That include the file.
        file: Its name.
        mutated: Its text.
    """
    files = {
        SHADERS / name for family in families for name in included(SHADERS / f"{family}.metal")
    }
    texts = [path.read_bytes() for path in sorted(files) + files_of_tests(families, file)]
    return digest(mutated, *texts)


@dataclass(frozen=True)
class Outcome:
    """What the tests said about a mutant.

    Attributes:
        state: Name of the shaders and tests that it holds for.
        result: One of KILLED, SURVIVED, COMPILER, STUCK.
        test: The one that failed, if one did.
        why: The first line of its error.
    """

    state: str
    result: str
    test: str = ""
    why: str = ""


class Outcomes:
    """Every outcome so far, in a file; several threads may add to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        found = json.loads(path.read_text()) if path.exists() else {}
        self._by_name = {name: Outcome(*fields) for name, fields in found.items()}
        self._killers: list[str] = []

    def get(self, mutant: Mutant) -> Outcome | None:
        """The last outcome of a mutant, of whatever state."""
        return self._by_name.get("\n".join(mutant.name))

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        with self._lock:
            self._by_name["\n".join(mutant.name)] = outcome
            fields = {name: astuple(outcome) for name, outcome in self._by_name.items()}
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(fields, indent=0))
            partial.rename(self._path)
            if outcome.test:
                others = [test for test in self._killers if test != outcome.test]
                self._killers = [outcome.test, *others]

    def likely_killers(self, mutant: Mutant) -> list[str]:
        """Tests to run first: this mutant's own, then the last that killed another."""
        earlier = self.get(mutant)
        own = [earlier.test] if earlier is not None and earlier.test else []
        return [*own, *self._killers[:8]]


def reason(output: str) -> str:
    """The beginning of what pytest says of a failing test; of the simulator, its first finding."""
    finding = re.search(r"^E +(\[(?!mslsim)[\w-]+\] .+)", output, re.M)
    error = finding or re.search(r"^E +(?:\w+Error: )?(\S.*)", output, re.M)
    return error[1][:100] if error else ""


class Worker:
    """A folder with a copy of the shaders and a cache of compiled ones."""

    def __init__(self, number: int) -> None:
        self._folder = BUILD / f"worker{number}"
        self._sources = self._folder / "metal"
        self._cache = self._folder / "cache"
        self._killer = self._folder / "killer"
        shutil.rmtree(self._sources, ignore_errors=True)
        shutil.copytree(SHADERS, self._sources)
        self._cache.mkdir(exist_ok=True)

    def outcome(self, mutant: Mutant, families: list[str], first: list[str]) -> Outcome:
        """Runs the tests on a mutant."""
        path = self._sources / mutant.file
        original = path.read_text()
        mutated = mutant.apply(original)
        compiled = set(self._cache.rglob("*"))
        path.write_text(mutated)
        try:
            result, test, output = self.run_tests(files_of_tests(families, mutant.file), first)
        finally:
            path.write_text(original)
            for left in set(self._cache.rglob("*.*")) - compiled:
                # Nothing compiles a mutant twice.
                left.unlink(missing_ok=True)
        if re.search(r"^E .*Unable to build metal library", output, re.M):
            result = COMPILER
        return Outcome(state_of(families, mutant.file, mutated), result, test, reason(output))

    def run_tests(self, tests: Iterable[object], first: list[str]) -> tuple[str, str, str]:
        """Result, failing test and output of tests on this worker's shaders.

        Raises:
            RuntimeError: the tests did not run.
        """
        self._killer.unlink(missing_ok=True)
        command = [*("nice", "-n", "10", sys.executable, "-m", "pytest", "-x", "-q")]
        command += ["-p", "no:cacheprovider", "-p", "mslsim.mutant_tests"]
        command += [f"--metal-sources={self._sources}", f"--killer={self._killer}"]
        command += [f"--first={test}" for test in first]
        command += map(str, tests)
        environment = os.environ | {"XDG_CACHE_HOME": str(self._cache)}
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return STUCK, "", ""
        test = self._killer.read_text() if self._killer.exists() else ""
        if done.returncode == TESTS_PASSED:
            return SURVIVED, "", done.stdout
        if done.returncode == TESTS_FAILED or done.returncode < 0:  # or died of a signal
            return KILLED, test, done.stdout
        raise RuntimeError(f"pytest exits with {done.returncode}\n{done.stdout}{done.stderr}")


class Run:
    """Decides every mutant of some families."""

    def __init__(self, families: list[str], n_workers: int) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        self._outcomes = Outcomes(BUILD / "outcomes.json")
        self._families = {
            file: sorted(users, key=lambda family: family not in families)
            for file, users in families_of_files().items()
        }
        self._listed = read_exceptions(EQUIVALENTS, "-+")
        self._n_workers = n_workers
        self._done = 0
        self.mutants = [
            mutant
            for mutant in shader_mutants(SHADERS)
            if not set(families).isdisjoint(self._families.get(mutant.file, []))
        ]

    def is_listed(self, mutant: Mutant) -> bool:
        """Whether the mutant is known to change nothing that could be observed."""
        return mutant.name in self._listed

    def result(self, mutant: Mutant) -> str | None:
        """What the tests, as they are, say about a mutant; None where they have not run."""
        if self.is_listed(mutant):
            return "equivalent"
        outcome = self._outcomes.get(mutant)
        mutated = mutant.apply((SHADERS / mutant.file).read_text())
        state = state_of(self._families[mutant.file], mutant.file, mutated)
        if outcome is None or outcome.state != state:
            return None
        return outcome.result

    def run(self) -> None:
        """Runs the tests on each mutant that has no outcome yet: barriers, boundaries, the rest."""
        pending = [mutant for mutant in self.mutants if self.result(mutant) is None]
        pending.sort(key=lambda mutant: (mutant.negates, mutant.replacement != ""))
        workers: Queue[Worker] = Queue()
        for number in range(self._n_workers if pending else 0):
            workers.put(Worker(number))
        print(f"{len(self.mutants)} mutants, {len(pending)} of them to run", flush=True)
        self._done = 0

        def decide(mutant: Mutant) -> None:
            worker = workers.get()
            families = self._families[mutant.file]
            try:
                outcome = worker.outcome(mutant, families, self._outcomes.likely_killers(mutant))
                self._outcomes.add(mutant, outcome)
            finally:
                workers.put(worker)
            self._done += 1
            by = f" by {outcome.test.rpartition('::')[2]}: {outcome.why}" if outcome.test else ""
            print(f"[{self._done}/{len(pending)}] {outcome.result}{by}\n{mutant}", flush=True)

        with ThreadPoolExecutor(self._n_workers) as pool:
            list(pool.map(decide, pending))

    def check_killers(self) -> None:
        """Runs the tests that killed a mutant on the shaders as they are.

        Raises:
            SystemExit: one fails there too, and so has shown nothing.
        """
        found = [self._outcomes.get(m) for m in self.mutants if self.result(m) == KILLED]
        if killers := sorted({outcome.test for outcome in found if outcome and outcome.test}):
            print(f"{len(killers)} tests killed mutants; on the shaders as they are:", flush=True)
            result, test, output = Worker(0).run_tests(killers, [])
            if result != SURVIVED:
                sys.exit(f"{output}\n{test} fails without a mutant")


def table(run: Run) -> str:
    """Number of mutants by file and result."""
    counts: dict[str, Counter[str]] = {}
    for mutant in run.mutants:
        counts.setdefault(mutant.file, Counter())[run.result(mutant) or "not run"] += 1
    columns = sorted({result for count in counts.values() for result in count})
    lines = [f"{'file':<20}" + "".join(f"{column:>18}" for column in columns)]
    for file, count in counts.items():
        lines.append(f"{file:<20}" + "".join(f"{count[column]:>18}" for column in columns))
    return "\n".join(lines)


def main() -> None:
    """Runs the mutants of all families, or of those named; exits with 1 if one survives."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("families", nargs="*", help="kernel families; all if none is named")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="run nothing, show what is known")
    arguments = parser.parse_args()
    every = sorted({path.stem for path in SHADERS.glob("*.metal")})
    if unknown := set(arguments.families) - set(every):
        parser.error(f"families must be among {', '.join(every)}; got {', '.join(unknown)}")
    run = Run(arguments.families or every, arguments.workers)
    if not arguments.show:
        run.run()
        run.check_killers()
    print(table(run))
    survivors = [m for m in run.mutants if run.result(m) in {SURVIVED, None}]
    for mutant in survivors:
        print(f"{run.result(mutant) or 'not run'}: {mutant}")
    sys.exit(len(survivors) > 0)


if __name__ == "__main__":
    main()
