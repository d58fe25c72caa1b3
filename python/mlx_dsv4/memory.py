"""How much memory this machine can still give, and how much this process has."""

import os
from dataclasses import dataclass
from pathlib import Path


def available_bytes() -> int | None:
    """Bytes that can be allocated without swapping, or None where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        return _sizes(meminfo).get("MemAvailable")
    if "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of this process that are in memory now.

    Args:
        file_backed: Pages of mapped files, which the system may drop and read again.
        anonymous: What no file backs.
    """

    file_backed: int
    anonymous: int

    @property
    def resident(self) -> int:
        """Both together."""
        return self.file_backed + self.anonymous


def process_memory() -> ProcessMemory | None:
    """What this process holds, or None where the system does not tell (other than Linux)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    sizes = _sizes(status)
    return ProcessMemory(sizes["RssFile"] + sizes["RssShmem"], sizes["RssAnon"])


def _sizes(path: Path) -> dict[str, int]:
    """The lines ``name: N kB`` of a file in /proc, in bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}
