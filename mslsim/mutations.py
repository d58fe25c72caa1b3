"""The mutants of a shader: each barrier deleted, each comparison changed, one at a time.

A comparison becomes its neighbour at the boundary and its negation::

    <   <=  >=        >   >=  <=        ==  !=
    <=  <   >         >=  >   <         !=  ==

and ``threadgroup_barrier(...)`` and ``simdgroup_barrier(...)`` become nothing. An operator of
comparison stands between blanks and an angle bracket of a template does not: clang-format sees to
that. What makes no code is left alone: comments, preprocessor lines, static_assert.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

FLIPS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
}
NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|\bstatic_assert\b[^;]*;",
    re.DOTALL | re.MULTILINE,
)
COMPARISON = re.compile(r"(?<=\s)(?:[<>]=?|[=!]=)(?=\s)")
BARRIER = re.compile(r"\b(?:threadgroup|simdgroup)_barrier\([^()]*\)")
# A definition begins in the first column, or in the third within a struct.
FUNCTION = re.compile(r"^(?: {2})?(?!return|else|if|for|while|switch)\w[^=;(\n]* (\w+)\(", re.M)
KERNEL = re.compile(r"^\[\[kernel\]\] void (\w+)\(", re.M)


@dataclass(frozen=True, order=True)
class Mutant:
    """One change to one file of ``metal/``.

    Attributes:
        file: Name of the file.
        begin: Where the text begins that is replaced.
        end: Where it ends.
        original: That text.
        replacement: What stands there instead.
        line: Number of the line.
        place: The function around it, then a number where its text has the same mutant again.
        before: The line, without indentation.
        after: The line when mutated.
    """

    file: str
    begin: int
    end: int
    original: str
    replacement: str
    line: int
    place: str
    before: str
    after: str

    @property
    def name(self) -> tuple[str, str, str, str]:
        """What an equivalent mutant is listed by; lines may move."""
        return self.file, self.place, self.before, self.after

    @property
    def negates(self) -> bool:
        """Whether it takes the other side of a comparison, all but its boundary."""
        return self.replacement in FLIPS.get(self.original, ())[1:]

    def apply(self, text: str) -> str:
        """The text of the file with the change made."""
        return text[: self.begin] + self.replacement + text[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.place}\n  - {self.before}\n  + {self.after}"


def blank(found: re.Match[str]) -> str:
    """As many characters that mean nothing, on as many lines."""
    return re.sub(r"[^\n]", " ", found[0])


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in order of appearance."""
    code = NO_CODE.sub(blank, text)
    changes = [
        (found.start(), found.end(), flip)
        for found in COMPARISON.finditer(code)
        for flip in FLIPS[found[0]]
    ]
    changes += [(found.start(), found.end(), "") for found in BARRIER.finditer(code)]
    definitions = sorted(
        (found.start(), found[1]) for kind in (FUNCTION, KERNEL) for found in kind.finditer(code)
    )
    seen: Counter[tuple[str, ...]] = Counter()
    mutants = []
    for change in sorted(changes):
        one = mutant(file, text, definitions, *change)
        seen[one.name] += 1
        number = f" {seen[one.name]}" if seen[one.name] > 1 else ""
        mutants.append(replace(one, place=one.place + number))
    return mutants


def mutant(
    file: str, text: str, definitions: list[tuple[int, str]], begin: int, end: int, flip: str
) -> Mutant:
    """The mutant that replaces text[begin:end] by `flip`."""
    line_begin = text.rfind("\n", 0, begin) + 1
    line_end = text.index("\n", end)
    return Mutant(
        file=file,
        begin=begin,
        end=end,
        original=text[begin:end],
        replacement=flip,
        line=text.count("\n", 0, begin) + 1,
        place=next((name for at, name in reversed(definitions) if at < begin), ""),
        before=" ".join(text[line_begin:line_end].split()),
        after=" ".join((text[line_begin:begin] + flip + text[end:line_end]).split()),
    )


def shader_mutants(folder: Path) -> list[Mutant]:
    """Every mutant of every shader and header in a folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix in {".metal", ".h"})
    return [found for path in files for found in mutants_of(path.name, path.read_text())]


@dataclass(frozen=True)
class Equivalent:
    """A listed mutant that changes nothing that could be observed, and why not."""

    name: tuple[str, str, str, str]
    reason: str


def read_equivalents(path: Path) -> list[Equivalent]:
    """The list of equivalent mutants: blocks of ``file function``, ``- line``, ``+ line``, reason.

    Raises:
        ValueError: a block has another form.
    """
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M)
    equivalents = []
    for block in filter(str.strip, re.split(r"\n{2,}", text)):
        found = re.fullmatch(
            r"(\S+)(?: ([^\n]+))?\n- (.+)\n\+ (.*)\n(?!\s)(.+)", block.strip(), re.S
        )
        if found is None or "\n" in found[3] + found[4]:
            raise ValueError(f"{path.name}: must be a mutant and its reason; got\n{block}")
        name = (found[1], found[2] or "", found[3].strip(), found[4].strip())
        equivalents.append(Equivalent(name, " ".join(found[5].split())))
    return equivalents
