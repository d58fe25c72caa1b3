"""The mutants of a shader: each barrier deleted, each comparison changed, one at a time.

A comparison becomes its neighbour at the boundary and its negation::

    <   <=  >=        >   >=  <=        ==  !=
    <=  <   >         >=  >   <         !=  ==

and ``threadgroup_barrier(...)`` and ``simdgroup_barrier(...)`` become nothing. An operator of
comparison stands between blanks and an angle bracket of a template does not: clang-format sees to
that. What makes no code of a shader is left alone: comments, preprocessor lines, static_assert, and
what a shared header has for the host alone.
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
# Branches on whether this is a shader; what the host alone compiles is the last group.
FOR_THE_HOST = re.compile(
    r"(^#ifdef __METAL_VERSION__\n(?:(?!#endif).*\n)*?#else\n|^#ifndef __METAL_VERSION__\n)"
    r"((?:(?!#endif).*\n)*)#endif",
    re.MULTILINE,
)
COMPARISON = re.compile(r"(?<=\s)(?:[<>]=?|[=!]=)(?=\s)")
BARRIER = re.compile(r"\b(?:threadgroup|simdgroup)_barrier\([^()]*\)")
# A definition begins in the first column, or in the third within a struct.
FUNCTION = re.compile(r"^(?: {2})?(?!return|else|if|for|while|switch)\w[^=;(\n]* (\w+)\(", re.M)
KERNEL = re.compile(r"^\[\[kernel\b.*\]\] void (\w+)\(", re.M)


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


def blank(found: re.Match[str], group: int = 0) -> str:
    """As many characters that mean nothing, on as many lines."""
    return re.sub(r"[^\n]", " ", found[group])


def without_comments(text: str) -> str:
    """The text with blanks for comments and for all else that makes no code of a shader."""
    shader = FOR_THE_HOST.sub(lambda found: found[1] + blank(found, 2) + "#endif", text)
    return NO_CODE.sub(blank, shader)


def definitions(text: str) -> list[tuple[int, str]]:
    """Line and name of each function that a shader or a header defines."""
    code = without_comments(text)
    found = [match for kind in (FUNCTION, KERNEL) for match in kind.finditer(code)]
    return sorted((text.count("\n", 0, match.start()) + 1, match[1]) for match in found)


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in order of appearance."""
    code = without_comments(text)
    changes = [
        (found.start(), found.end(), flip)
        for found in COMPARISON.finditer(code)
        for flip in FLIPS[found[0]]
    ]
    changes += [(found.start(), found.end(), "") for found in BARRIER.finditer(code)]
    functions = definitions(text)
    seen: Counter[tuple[str, ...]] = Counter()
    mutants = []
    for change in sorted(changes):
        one = mutant(file, text, functions, *change)
        seen[one.name] += 1
        number = f" {seen[one.name]}" if seen[one.name] > 1 else ""
        mutants.append(replace(one, place=one.place + number))
    return mutants


def mutant(
    file: str, text: str, functions: list[tuple[int, str]], begin: int, end: int, flip: str
) -> Mutant:
    """The mutant that replaces text[begin:end] by `flip`."""
    line = text.count("\n", 0, begin) + 1
    line_begin = text.rfind("\n", 0, begin) + 1
    line_end = text.index("\n", end)
    return Mutant(
        file=file,
        begin=begin,
        end=end,
        original=text[begin:end],
        replacement=flip,
        line=line,
        place=next((name for start, name in reversed(functions) if start <= line), ""),
        before=" ".join(text[line_begin:line_end].split()),
        after=" ".join((text[line_begin:begin] + flip + text[end:line_end]).split()),
    )


def shader_mutants(folder: Path) -> list[Mutant]:
    """Every mutant of every shader and header in a folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix in {".metal", ".h"})
    return [found for path in files for found in mutants_of(path.name, path.read_text())]
