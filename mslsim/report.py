"""What one dispatch found."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mslsim.runtime import runtime

SYMBOLIZERS = ("llvm-symbolizer-19", "llvm-symbolizer")
# Frames of the simulator's own headers say nothing about the shader.
OWN_FRAME = re.compile(r"/mslsim/include/msl_")


@dataclass(frozen=True)
class Finding:
    """One thing that a kernel did wrong, with the source lines of the accesses."""

    kind: str
    text: str
    at: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"[{self.kind}] {self.text}"]
        lines += [f"    at {' <- '.join(self.at)}"] if self.at else []
        lines += [f"    vs {' <- '.join(self.other)}"] if self.other else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """The findings of one dispatch, and how long it took."""

    findings: tuple[Finding, ...]
    run_s: float
    copy_s: float

    def kinds(self) -> set[str]:
        """The kinds of the findings."""
        return {finding.kind for finding in self.findings}

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


def read_findings(handle: int, library: Path) -> tuple[Finding, ...]:
    """Copies and frees the findings of a launch of a kernel of `library`."""
    lib = runtime()
    findings = []
    for i in range(lib.msl_finding_count(handle)):
        raw = lib.msl_finding_at(handle, i)
        at, other = (
            tuple(source_lines(library, offset)) for offset in (raw.offset, raw.other_offset)
        )
        findings.append(Finding(raw.kind.decode(), raw.text.decode(), at, other))
    lib.msl_free_findings(handle)
    return tuple(findings)


def source_lines(library: Path, offset: int) -> list[str]:
    """file:line of a return address, innermost inlined call first."""
    if not offset:
        return []
    (frames,) = symbolize(library, [offset - 1])
    return [re.sub(r"^.*/", "", frame) for frame in frames]


def symbolize(library: Path, offsets: Iterable[int]) -> list[list[str]]:
    """The inlined calls, as path:line, at each offset into a compiled library."""
    addresses = [hex(offset) for offset in offsets]
    if not addresses:
        return []
    command = symbolizer()
    out = subprocess.run(
        [*command, str(library)], input="\n".join(addresses), capture_output=True, text=True
    ).stdout
    blocks = (
        re.split(r"^0x[0-9a-f]+\n", out, flags=re.M)[1:]
        if command[0] == "addr2line"
        else out.rstrip("\n").split("\n\n")
    )
    return [shader_frames(block) for block in blocks]


@cache
def symbolizer() -> tuple[str, ...]:
    """The command that turns addresses on its input into lines: LLVM's, or binutils'."""
    for name in SYMBOLIZERS:
        if shutil.which(name):
            return (name, "--functions=none", "--inlining", "--obj")
    return ("addr2line", "-a", "-i", "-e")


def shader_frames(block: str) -> list[str]:
    """path:line of the frames that belong to the shader."""
    frames = []
    for line in block.splitlines():
        found = re.match(r"(.*?):(\d+)", line)
        if found and int(found[2]) and not OWN_FRAME.search(found[1]):
            frames.append(f"{found[1]}:{found[2]}")
    return frames
