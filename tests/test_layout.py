"""The repository's own rules: conventions that are not tests decay."""

import re
import subprocess
from pathlib import Path

import pytest

from write_stub import extension_stub

ROOT = Path(__file__).parents[1]
TRACKED = [
    ROOT / line
    for line in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if (ROOT / line).is_file()
]
SOURCES = [p for p in TRACKED if p.suffix in {".py", ".cpp", ".h", ".metal"}]
PROSE = [p for p in TRACKED if p.suffix == ".md" and p.name != "CHANGELOG.md"]
FAMILIES = re.search(r"set\(FAMILIES ([^)]+)\)", (ROOT / "CMakeLists.txt").read_text())[1].split()

HISTORY = re.compile(
    r"\b(?:Phase|Track|Milestone|ADR)[ -](?:\d|[A-Z]{1,3}\b)"
    r"|(?i:\b(?:no longer|previously|used to be|legacy|refactor(?:ed)?|for now|todo|fixme)\b)"
)
REFUSED_NAMES = {"utils", "helpers", "misc", "core", "base", "manager", "native", "v2"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_all_families_are_built() -> None:
    kernels = {path.stem.removesuffix("_cpu") for path in (ROOT / "csrc").glob("*_cpu.cpp")}
    assert set(FAMILIES) == kernels - {"ceilings"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kernel_family_has_every_part(family: str) -> None:
    parts = (
        f"metal/{family}.h",
        f"metal/{family}.metal",
        f"csrc/{family}.h",
        f"csrc/{family}.cpp",
        f"csrc/{family}_cpu.h",
        f"csrc/{family}_cpu.cpp",
        f"csrc/{family}_metal.cpp",
        f"python/mlx_dsv4/ops/{family}.py",
        f"python/mlx_dsv4/reference/{family}.py",
        f"tests/kernels/test_{family}.py",
        f"python/mlx_dsv4/bench/{family}.py",
        f"docs/kernels/{family}.md",
    )
    assert [part for part in parts if not (ROOT / part).exists()] == []


def test_every_op_has_a_reference_twin() -> None:
    from mlx_dsv4 import ops, reference

    kernels = set(ops.__all__) - {
        "ARITHMETIC",
        "CpuKernels",
        "DeviceChoice",
        "MappedFile",
        "cpu_kernels",
        "data_pointer",
        "host_bytes",
        "kernel_device",
        "multiply_adds",
        "read_all",
        "uninitialized",
        "widened_multiply_adds",
    }
    assert sorted(op for op in kernels if not hasattr(reference, op)) == []


def test_the_extension_has_two_doors() -> None:
    package = ROOT / "python/mlx_dsv4"
    importers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\b(?:import|from) .*\b_ext\b", path.read_text())
    }
    assert {name for name in importers if not name.startswith("ops/")} == {"cli/doctor.py"}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_file_fits_in_one_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


# Headers that stand in for MLX's and Apple's have the names of those.
NAMED_HERE = [path for path in SOURCES if "include" not in path.parts]


@pytest.mark.parametrize("path", NAMED_HERE, ids=relative)
def test_a_file_has_a_name_that_says_something(path: Path) -> None:
    assert path.stem not in REFUSED_NAMES


@pytest.mark.parametrize("path", [*SOURCES, *PROSE], ids=relative)
def test_the_tree_speaks_in_the_present_tense(path: Path) -> None:
    if path != Path(__file__):
        assert HISTORY.findall(path.read_text()) == []


@pytest.mark.parametrize("path", PROSE, ids=relative)
def test_paths_named_in_prose_exist(path: Path) -> None:
    text = path.read_text()
    folders = "csrc|fuzz|metal|mslsim|macos|python|tests|benchmarks|docs|examples"
    named = re.findall(rf"`((?:{folders})/[\w./]+)`", text)
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in links if not (path.parent / link).exists()]
    assert missing == []


def test_the_committed_stub_is_the_generated_one() -> None:
    committed = (ROOT / "python/mlx_dsv4/_ext.pyi").read_text()
    assert committed == extension_stub(), "run `make stub`"
