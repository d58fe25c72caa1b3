"""The mistakes that compute-sanitizer must find: bugs of tests/seeded_bugs.toml."""

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHADERS = ROOT / "metal"
SEEDED_BUGS = ROOT / "tests/seeded_bugs.toml"


@dataclass(frozen=True)
class PlantedBug:
    """A seeded bug, and the tool that reports it.

    Attributes:
        name: Of its folder in the pack.
        what: As in the list of seeded bugs.
        tool: compute-sanitizer's tool.
    """

    name: str
    what: str
    tool: str

    def fields(self) -> dict[str, str]:
        """The bug as the list has it."""
        listed: list[dict[str, str]] = tomllib.loads(SEEDED_BUGS.read_text())["bug"]
        found = [bug for bug in listed if bug["what"] == self.what]
        if len(found) != 1:
            raise ValueError(f"{SEEDED_BUGS} must list {self.what!r} once; found {len(found)}")
        return found[0]

    def test(self) -> str:
        """The test that runs the broken kernel."""
        return "tests/kernels/" + self.fields()["test"]

    def family(self) -> str:
        """The kernel family whose shader is broken."""
        return self.fields()["file"].removesuffix(".metal")

    def plant(self, folder: Path) -> None:
        """Writes the shaders with the mistake."""
        bug = self.fields()
        shutil.copytree(SHADERS, folder, ignore=shutil.ignore_patterns("__pycache__", "lint"))
        path = folder / bug["file"]
        source = path.read_text()
        if (n := source.count(bug["text"])) != 1:
            raise ValueError(f"{path.name} must hold {bug['text']!r} once; found {n}")
        path.write_text(source.replace(bug["text"], bug["replacement"]))


BUGS = (
    PlantedBug("barrier", "no barrier before the simdgroups' squares are added", "racecheck"),
    PlantedBug("bounds", "a vector past the end of a row", "memcheck"),
)
