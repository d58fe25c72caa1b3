"""Saved caches in a folder, found by the longest prefix of a prompt, within a number of bytes."""

import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from xxhash import xxh3_128

from mlx_dsv4.cache.cache import Cache
from mlx_dsv4.cache.file import PARTIAL
from mlx_dsv4.cache.fingerprint import Fingerprint
from mlx_dsv4.cache.plan import CachePlan
from mlx_dsv4.cache.saved import (
    SavedCache,
    SavedFile,
    checked_ids,
    integers,
    save_cache,
    saved_bytes,
)
from mlx_dsv4.cache.snapshot import Snapshot
from mlx_dsv4.errors import BudgetError, FileFormatError

SUFFIX = ".dsv4cache"
HALF_LIFE_SECONDS = 24 * 3600.0  # after which a file that nobody used is worth half as much
LEFT_BEHIND_SECONDS = 60.0  # before which an unlocked partial file may still be about to be locked

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a store, by its name and its times.

    Attributes:
        path: Of the file.
        kind: Digest of the fingerprint.
        n_tokens: Position that was saved.
        key: Digest of the tokens.
        n_bytes: Size of the file.
        used: Seconds since the epoch when it was last written or found.
    """

    path: Path
    kind: str
    n_tokens: int
    key: str
    n_bytes: int
    used: float

    def usefulness(self, now: float) -> float:
        """Prompt tokens it saves per byte, halved for every day without use."""
        half_lives = (now - self.used) / HALF_LIFE_SECONDS
        return self.n_tokens / self.n_bytes * math.pow(0.5, half_lives)


class CacheStore:
    """A folder of saved caches; several processes may use it at once.

    There is no index: a file's name says of which model and tokens it is. A file that somebody
    has open is not evicted.

    Args:
        folder: Made if it is not there.
        budget_bytes: Most bytes of the files; exceeded while one is written, until others are
            evicted, and where those that are left are in use.

    Raises:
        BudgetError: ``budget_bytes`` is less than 1.
        OSError: the folder is not there and cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], budget_bytes: int) -> None:
        if budget_bytes < 1:
            raise BudgetError(f"budget_bytes must be at least 1; got {budget_bytes}")
        self.folder = Path(folder)
        self.budget_bytes = budget_bytes
        self.folder.mkdir(parents=True, exist_ok=True)

    def entries(self) -> list[Entry]:
        """The files that are there."""
        found = (self._entry(path) for path in self.folder.glob(f"*{SUFFIX}"))
        return [entry for entry in found if entry is not None]

    def save(
        self,
        cache: Cache,
        *,
        tokens: Sequence[int],
        logits: ArrayLike | None = None,
        snapshot: Snapshot | None = None,
    ) -> Path:
        """Save a position as :func:`save_cache` does; evict the least useful others if need be.

        Returns:
            The file. It is not written again if it is there with all that is given here.

        Raises:
            BudgetError: it alone would exceed the budget; nothing has changed.
            PromptError, SnapshotError, CacheStateError, OSError: as :func:`save_cache`.
        """
        snapshot = snapshot or cache.snapshot()
        ids = checked_ids(tokens, snapshot)
        n_bytes = saved_bytes(cache.plan, snapshot, has_logits=logits is not None)
        if n_bytes > self.budget_bytes:
            raise BudgetError(
                f"a saved cache of {snapshot.position} tokens has {n_bytes} bytes; "
                f"the store {self.folder} may hold {self.budget_bytes}"
            )
        kind = snapshot.fingerprint.digest()
        path = self.folder / f"{kind}-{len(ids)}-{token_key(ids)}{SUFFIX}"
        if not self._has(path, logits is not None):
            save_cache(path, cache, tokens=tokens, logits=logits, snapshot=snapshot)
        self.evict(keep=path)
        return path

    def load(
        self, tokens: Sequence[int], plan: CachePlan, fingerprint: Fingerprint
    ) -> SavedCache | None:
        """A cache of the longest saved prefix of ``tokens``; None if there is none.

        Damaged files are removed, with a warning in the log, and the next one is tried.

        Raises:
            PlanError, AllocationError, OSError: as :func:`load_cache`.
        """
        while (file := self.find(tokens, fingerprint)) is not None:
            with file:
                try:
                    return file.load(plan, fingerprint)
                except FileFormatError as error:
                    self._discard(file.path, error)
        return None

    def find(self, tokens: Sequence[int], fingerprint: Fingerprint) -> SavedFile | None:
        """The file of the longest prefix of ``tokens``, open, so that it is not evicted.

        All of ``tokens`` count as a prefix if the file has logits to go on with.

        Raises:
            PromptError: tokens that are no integers.
        """
        ids = integers(tokens)
        kind = fingerprint.digest()
        fitting = [e for e in self.entries() if e.kind == kind and e.n_tokens <= len(ids)]
        for entry in sorted(fitting, key=lambda entry: entry.n_tokens, reverse=True):
            if entry.key != token_key(ids[: entry.n_tokens]):
                continue
            file = self._open(entry.path)
            if file is None:
                continue
            if self._is_prefix(file, ids):
                os.utime(file.file.fileno())
                return file
            file.close()
        return None

    def evict(self, *, keep: Path | None = None) -> None:
        """Remove the least useful files, and partial ones left behind, down to the budget.

        Args:
            keep: A file that stays in any case.
        """
        with self._locked():
            self._remove_left_behind()
            entries, now = self.entries(), time.time()
            excess = sum(entry.n_bytes for entry in entries) - self.budget_bytes
            for entry in sorted(entries, key=lambda entry: entry.usefulness(now)):
                if excess <= 0:
                    return
                if entry.path != keep and _remove_unused(entry.path):
                    excess -= entry.n_bytes
            if excess > 0:
                _log.warning("%s exceeds its budget by %d bytes in use", self.folder, excess)

    def _entry(self, path: Path) -> Entry | None:
        kind, *rest = path.name.removesuffix(SUFFIX).split("-")
        try:
            n_tokens, key = rest
            found = path.stat()
            return Entry(path, kind, int(n_tokens), key, found.st_size, found.st_mtime)
        except (ValueError, FileNotFoundError):  # not one of ours, or evicted meanwhile
            return None

    def _has(self, path: Path, with_logits: bool) -> bool:
        """Whether the file is there with all that would be written; then it counts as used."""
        file = self._open(path)
        if file is None:
            return False
        with file:
            if with_logits and not file.has_logits:
                return False
            os.utime(file.file.fileno())
            return True

    def _open(self, path: Path) -> SavedFile | None:
        """The file, locked against eviction; None if it is gone or damaged."""
        try:
            file = SavedFile(path)
        except FileNotFoundError:
            return None
        except FileFormatError as error:
            self._discard(path, error)
            return None
        flock(file.file, LOCK_SH)
        if os.fstat(file.file.fileno()).st_nlink == 0:  # evicted before it was locked
            file.close()
            return None
        return file

    def _is_prefix(self, file: SavedFile, ids: NDArray[np.int64]) -> bool:
        if file.position == len(ids) and not file.has_logits:
            return False
        try:
            return np.array_equal(file.tokens(), ids[: file.position])
        except FileFormatError as error:
            self._discard(file.path, error)
            return False

    def _discard(self, path: Path, error: FileFormatError) -> None:
        _log.warning("removing a damaged file: %s", error)
        path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time counts and evicts."""
        with (self.folder / ".lock").open("a") as file:
            flock(file, LOCK_EX)
            yield

    def _remove_left_behind(self) -> None:
        for path in self.folder.glob(f".*{PARTIAL}"):
            if path.exists() and time.time() - path.stat().st_mtime > LEFT_BEHIND_SECONDS:
                _remove_unused(path)


def token_key(ids: NDArray[np.int64]) -> str:
    """Digest of token ids."""
    return xxh3_128(ids.data).hexdigest()


def _remove_unused(path: Path) -> bool:
    """Remove a file unless somebody has it locked; whether it is gone."""
    try:
        with path.open("rb") as file:
            flock(file, LOCK_EX | LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True
