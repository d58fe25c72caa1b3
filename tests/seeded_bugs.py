"""Shaders broken on purpose: each change below must turn a test red.

`make seeded-bugs` applies them one at a time; docs/kernels/testing.md lists them, and
tests/seeded_bugs.toml is the list.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

# What a list of this length must try at least.
KINDS = (
    *("visibility", "overlap", "ring slot", "barrier", "lane"),
    *("tie rule", "sink", "rotation", "tail guard", "scale"),
)


@dataclass(frozen=True)
class SeededBug:
    """One change to one shader, and the test that it breaks.

    Attributes:
        kind: What is wrong, in a word or two.
        file: Name of the file in ``metal/``.
        text: What is replaced; the file holds it once.
        replacement: What stands there instead.
        test: The test that fails: file in ``tests/kernels/`` and name.
        what: The mistake, for people.
    """

    kind: str
    file: str
    text: str
    replacement: str
    test: str
    what: str

    def seed(self, sources: Path) -> None:
        """Writes the change into a copy of ``metal/``.

        Raises:
            ValueError: the text does not occur exactly once.
        """
        path = sources / self.file
        source = path.read_text()
        if (found := source.count(self.text)) != 1:
            raise ValueError(f"{self.file} must hold {self.text!r} once; found {found}")
        path.write_text(source.replace(self.text, self.replacement))


LIST = Path(__file__).with_suffix(".toml")
SEEDED_BUGS = [SeededBug(**fields) for fields in tomllib.loads(LIST.read_text())["bug"]]
