"""Whether a pack was made from the files that are here: its package runs this checkout's tests."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

# What is built into the pack, and what runs there.
FOLDERS = ("python", "csrc", "metal", "mslsim", "tests", "tools/gpu_check", "benchmarks/gpu")
FILES = ("CMakeLists.txt", "pyproject.toml")
# Metal's own headers have no suffix.
SUFFIXES = {"", ".py", ".pyi", ".cpp", ".h", ".hpp", ".metal", ".cmake", ".json", ".toml", ".txt"}
MOST_NAMED = 5


def digests(root: Path) -> dict[str, str]:
    """A digest of every source file, by its path in a checkout."""
    paths = [root / name for name in FILES]
    for folder in FOLDERS:
        paths += (path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(paths)
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    }


def problem(pack: Path, commit: str, packed: Mapping[str, str], here: Mapping[str, str]) -> str:
    """What is wrong with a pack of these digests in a checkout of those; empty where nothing is."""
    differ = sorted(path for path in {*packed, *here} if packed.get(path) != here.get(path))
    if not differ:
        return ""
    named = ", ".join(differ[:MOST_NAMED]) + (", ..." if len(differ) > MOST_NAMED else "")
    return (
        f"{pack} must be packed from the files of this checkout; it was packed at {commit}, and "
        f"{len(differ)} files differ: {named}. Run tools/gpu_check.sh pack again"
    )
