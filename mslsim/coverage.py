"""Which lines of the shaders have run, over every library that was opened in "cov" mode.

A line is seen where a basic block begins, of any instantiation, and has run if one of these blocks
has. Blocks have no line of their own where the compiler makes a choice without a branch.
"""

import ctypes
import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mslsim.mutations import definitions, without_comments
from mslsim.report import symbolize
from mslsim.runtime import runtime

# Path of a compiled library -> offset of a block in it -> whether it has run.
Points = dict[str, dict[int, bool]]


@dataclass
class LineCoverage:
    """The lines of one file that have code: those that ran, and those that never did."""

    ran: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)

    @property
    def missed(self) -> list[int]:
        """Lines with code that never ran, in order."""
        return sorted(self.seen - self.ran)


def own_points() -> Points:
    """The blocks of the libraries of this process."""
    lib = runtime()
    points: Points = defaultdict(dict)
    for i in range(lib.msl_library_count()):
        handle = lib.msl_library_at(i)
        blocks = points[lib.msl_library_path(handle).decode()]
        for k in range(lib.msl_coverage_count(handle)):
            offset = ctypes.c_uint64()
            reached = bool(lib.msl_coverage_at(handle, k, offset))
            blocks[offset.value] = blocks.get(offset.value, False) or reached
    return {path: blocks for path, blocks in points.items() if blocks}


def save_points(folder: Path) -> None:
    """Writes the blocks of this process into a folder, for another one to merge."""
    saved = {path: list(blocks.items()) for path, blocks in own_points().items()}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(saved))


def merged_points(folder: Path | None) -> Points:
    """The blocks of this process and of those that saved theirs in a folder."""
    merged: Points = defaultdict(dict)
    files = sorted(folder.glob("*.json")) if folder else []
    saved = [json.loads(file.read_text()) for file in files]
    for points in (own_points(), *({path: dict(b) for path, b in s.items()} for s in saved)):
        for path, blocks in points.items():
            for offset, reached in blocks.items():
                merged[path][offset] = merged[path].get(offset, False) or reached
    return merged


def line_coverage(file_name_part: str = "", folder: Path | None = None) -> dict[str, LineCoverage]:
    """The union over every library opened in "cov" mode, by file.

    Args:
        file_name_part: Only of files with this in their names.
        folder: Where other processes saved their part.
    """
    files: dict[str, LineCoverage] = defaultdict(LineCoverage)
    for path, reached_by_offset in merged_points(folder).items():
        frames = symbolize(Path(path), reached_by_offset)
        for reached, calls in zip(reached_by_offset.values(), frames, strict=True):
            for file_name, _, line in (call.rpartition(":") for call in calls):
                if file_name_part in file_name:
                    files[file_name].seen.add(int(line))
                    files[file_name].ran |= {int(line)} if reached else set()
    return dict(files)


def compiled_lines(libraries: Iterable[str]) -> dict[str, set[int]]:
    """The lines that made any code of compiled libraries, by the files' names."""
    lines: dict[str, set[int]] = defaultdict(set)
    for library in libraries:
        command = ["readelf", "--wide", "--debug-dump=decodedline", library]
        table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, line in set(re.findall(r"^(\S+)\s+(\d+)\s+0x", table, re.MULTILINE)):
            lines[Path(name).name].add(int(line))  # it has folders where the compiler ran above it
    return lines


@dataclass(frozen=True, order=True)
class Uncovered:
    """A line that has not run, or that begins a function that nothing compiled calls."""

    file: str
    line: int
    place: str
    text: str

    @property
    def name(self) -> tuple[str, str, str]:
        """What it is listed by; lines may move."""
        return self.file, self.place, self.text

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.place}\n- {self.text}"


@dataclass(frozen=True)
class Function:
    """A function of a shader, with what stands between it and the next one.

    Attributes:
        file: Name of the file.
        line: Where it begins.
        name: Its name.
        code: Its text, without comments.
        compiled: Whether a library has code of it.
    """

    file: str
    line: int
    name: str
    code: str
    compiled: bool

    @property
    def heading(self) -> range:
        """Its lines before the first that may hold a statement."""
        before, _, body = self.code.partition("{")
        n_lines = before.count("\n") + (not body.partition("\n")[0].strip())
        return range(self.line, self.line + n_lines)

    @property
    def lines(self) -> range:
        """Its lines, and those up to the next function."""
        return range(self.line, self.line + self.code.count("\n") + 1)

    @property
    def is_straight(self) -> bool:
        """Whether it has neither branch nor loop."""
        return re.search(r"\b(?:if|for|while|switch)\b", self.code) is None


def functions_of(path: Path, compiled: set[int]) -> list[Function]:
    """The functions of a file of which some lines made code; one without a name comes first."""
    lines = without_comments(path.read_text()).splitlines()
    starts = [(1, ""), *definitions(path.read_text())]
    ends = [*(start for start, _ in starts[1:]), len(lines) + 1]
    functions = []
    for (start, name), end in zip(starts, ends, strict=True):
        code = "\n".join(lines[start - 1 : end - 1])
        has_code = not name or not compiled.isdisjoint(range(start, end))
        functions.append(Function(path.name, start, name, code, has_code))
    return functions


def unreached(functions: list[Function]) -> list[Function]:
    """Those without code, but for straight ones, which leave none where something with code calls.

    Overloads count as one.
    """
    rest = [function for function in functions if not function.compiled]
    callers = [function for function in functions if function.compiled]
    while callers:
        words = {word for caller in callers for word in re.findall(r"\w+", caller.code)}
        callers = [function for function in rest if function.name in words and function.is_straight]
        rest = [function for function in rest if function not in callers]
    return rest


def uncovered_lines(shaders: Path, folder: Path | None = None) -> list[Uncovered]:
    """The lines of a folder of shaders that no library opened in "cov" mode has run.

    Args:
        shaders: The folder; compiled shaders call its files by their names.
        folder: Where other processes saved their part.
    """
    coverage = {Path(path).name: file for path, file in line_coverage(folder=folder).items()}
    compiled = compiled_lines(merged_points(folder))
    paths = sorted(path for path in shaders.iterdir() if path.suffix in {".metal", ".h"})
    functions = {path.name: functions_of(path, compiled[path.name]) for path in paths}
    never = unreached([function for file in functions.values() for function in file])
    uncovered = []
    for path in paths:
        texts = without_comments(path.read_text()).splitlines()
        file = coverage.get(path.name, LineCoverage())
        for function in functions[path.name]:
            missed = {line for line in function.lines if line in file.seen - file.ran}
            if not file.ran.isdisjoint(function.lines):
                # Of the copy that would be called, had its calls not been inlined.
                missed -= {*function.heading}
            missed |= {function.line} if function in never else set()
            for line in sorted(missed):
                text = " ".join(texts[line - 1].split())
                uncovered.append(Uncovered(path.name, line, function.name, text))
    return uncovered
