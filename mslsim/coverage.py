"""Which lines of the shaders have run, over every library that this process opened."""

import ctypes
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from mslsim.report import symbolize
from mslsim.runtime import runtime


@dataclass
class LineCoverage:
    """The lines of one file that have code: those that ran, and those that never did."""

    ran: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)

    @property
    def missed(self) -> list[int]:
        """Lines with code that never ran, in order."""
        return sorted(self.seen - self.ran)


def line_coverage(file_name_part: str = "") -> dict[str, LineCoverage]:
    """The union over every library opened in "cov" mode, by file."""
    lib = runtime()
    points: dict[Path, dict[int, bool]] = defaultdict(dict)
    for i in range(lib.msl_library_count()):
        handle = lib.msl_library_at(i)
        path = Path(lib.msl_library_path(handle).decode())
        for k in range(lib.msl_coverage_count(handle)):
            offset = ctypes.c_uint64()
            reached = bool(lib.msl_coverage_at(handle, k, offset))
            points[path][offset.value] = points[path].get(offset.value, False) or reached
    files: dict[str, LineCoverage] = defaultdict(LineCoverage)
    for path, reached_by_offset in points.items():
        frames = symbolize(path, reached_by_offset)
        for reached, calls in zip(reached_by_offset.values(), frames, strict=True):
            for file_name, _, line in (call.rpartition(":") for call in calls):
                if file_name_part in file_name:
                    files[file_name].seen.add(int(line))
                    files[file_name].ran |= {int(line)} if reached else set()
    return dict(files)
