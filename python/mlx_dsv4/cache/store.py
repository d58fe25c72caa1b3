"""Saved caches in a folder, found by the longest prefix of a prompt, within a number of bytes."""

import errno
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray
from xxhash import xxh3_128

from mlx_dsv4.cache.cache import Cache
from mlx_dsv4.cache.file import PARTIAL
from mlx_dsv4.cache.fingerprint import Fingerprint, differences
from mlx_dsv4.cache.plan import CachePlan
from mlx_dsv4.cache.saved import (
    TOKEN,
    SavedCache,
    SavedFile,
    held_ids,
    save_cache,
    saved_bytes,
)
from mlx_dsv4.cache.snapshot import Snapshot
from mlx_dsv4.errors import BudgetError, DamagedFileError, FileFormatError
from mlx_dsv4.paths import usable_path
from mlx_dsv4.token_ids import check_token_ids

SUFFIX = ".dsv4cache"
NAME = re.compile(rf"([0-9a-f]{{32}})-(0|[1-9][0-9]*)-([0-9a-f]{{32}}){re.escape(SUFFIX)}")
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
        half_lives = max(0.0, now - self.used) / HALF_LIFE_SECONDS  # clocks may be set back
        return self.n_tokens / max(1, self.n_bytes) * math.pow(0.5, half_lives)


class CacheStore:
    """A folder of saved caches; several processes may use it at once.

    There is no index: a file's name says of which model and tokens it is. A file that somebody
    has open is not evicted.

    Args:
        folder: Made if it is not there.
        budget_bytes: Most bytes of the files; exceeded while one is written, until others are
            evicted, and where those that are left are in use.

    Raises:
        BudgetError: ``budget_bytes`` is no integer, or less than 1.
        OSError: the folder is no folder, or is not there and cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], budget_bytes: int) -> None:
        if not isinstance(budget_bytes, int) or budget_bytes < 1:
            raise BudgetError(
                f"budget_bytes must be an integer of at least 1; got {budget_bytes!r}"
            )
        self.folder = usable_path(folder)
        self.budget_bytes = budget_bytes
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "the store must be a folder", str(folder))
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
        snapshot = cache.snapshot() if snapshot is None else snapshot
        cache.check_holds(snapshot)
        ids = held_ids(tokens, snapshot)
        n_bytes = saved_bytes(cache.plan, snapshot, has_logits=logits is not None)
        if n_bytes > self.budget_bytes:
            raise BudgetError(
                f"a saved cache of {snapshot.position} tokens has {n_bytes} bytes; "
                f"the store {self.folder} may hold {self.budget_bytes}"
            )
        kind = snapshot.fingerprint.digest()
        path = self.folder / f"{kind}-{len(ids)}-{token_key(ids)}{SUFFIX}"
        if not self._has(path, ids, snapshot.fingerprint, with_logits=logits is not None):
            save_cache(path, cache, tokens=tokens, logits=logits, snapshot=snapshot)
        self.evict(keep=path)
        return path

    def load(
        self, tokens: Sequence[int], plan: CachePlan, fingerprint: Fingerprint
    ) -> SavedCache | None:
        """A cache of the longest saved prefix of ``tokens`` that fits; None if there is none.

        All of ``tokens`` count as a prefix if their logits were saved too. A damaged file is
        removed, with a warning in the log, and the next one is tried.

        Args:
            tokens: The prompt.
            plan: Sizes of the cache to make; longer prefixes are passed over.
            fingerprint: What the rows must depend on.

        Raises:
            PlanError: the plan is of another model or row format than the fingerprint.
            PromptError: tokens that are no ids of the vocabulary.
            AllocationError, OSError: as :func:`load_cache`.
        """
        for file in self._prefixes(tokens[: plan.capacity_tokens], fingerprint, len(tokens)):
            with file:
                try:
                    return file.load(plan, fingerprint)
                except FileFormatError as error:
                    self._pass_over(file.path, error)
        return None

    def find(self, tokens: Sequence[int], fingerprint: Fingerprint) -> SavedFile | None:
        """The file of the longest prefix of ``tokens``, open, so that it is not evicted.

        All of ``tokens`` count as a prefix if the file has logits to go on with.

        Raises:
            PromptError: tokens that are no ids of the vocabulary.
        """
        return next(self._prefixes(tokens, fingerprint, len(tokens)), None)

    def _prefixes(
        self, tokens: Sequence[int], fingerprint: Fingerprint, n_prompt: int
    ) -> Iterator[SavedFile]:
        """Open files of prefixes of the first tokens of a prompt, the longest first."""
        ids = np.array(check_token_ids(tokens, fingerprint.config.vocab), TOKEN)
        kind = fingerprint.digest()
        fitting = [e for e in self.entries() if e.kind == kind and e.n_tokens <= len(ids)]
        for entry in sorted(fitting, key=lambda entry: entry.n_tokens, reverse=True):
            prefix = ids[: entry.n_tokens]
            if entry.key != token_key(prefix):
                continue
            file = self._open(entry.path, prefix, fingerprint)
            if file is None:
                continue
            if file.has_logits or len(prefix) < n_prompt:
                _mark_used(file)
                yield file
            else:
                file.close()

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
                kept = keep is not None and entry.path.name == keep.name
                if not kept and _remove_unused(entry.path):
                    excess -= entry.n_bytes
            if excess > 0:
                _log.warning("%s exceeds its budget by %d bytes in use", self.folder, excess)

    def _entry(self, path: Path) -> Entry | None:
        name, found = NAME.fullmatch(path.name), _regular(path)
        if name is None or found is None:
            return None
        kind, n_tokens, key = name.groups()
        return Entry(path, kind, int(n_tokens), key, found.st_size, found.st_mtime)

    def _has(
        self, path: Path, ids: NDArray[np.int32], fingerprint: Fingerprint, *, with_logits: bool
    ) -> bool:
        """Whether the file is there with all that would be written; then it counts as used."""
        file = self._open(path, ids, fingerprint)
        if file is None:
            return False
        with file:
            if with_logits and not file.has_logits:
                return False
            try:
                file.verify()
            except DamagedFileError as error:
                self._pass_over(path, error)
                return False
            _mark_used(file)
            return True

    def _open(
        self, path: Path, ids: NDArray[np.int32], fingerprint: Fingerprint
    ) -> SavedFile | None:
        """The file, locked against eviction; None if it is gone, damaged, of other tokens, or
        cannot be read."""
        file = None
        try:
            file = _open_locked(path)
            _check_name(file, ids, fingerprint)
            return file
        except FileNotFoundError:
            return None
        except FileFormatError as error:
            if file is not None:
                file.close()
            self._pass_over(path, error)
            return None
        except OSError as error:
            _log.warning("passing over a file: %s", error)
            return None

    def _pass_over(self, path: Path, error: FileFormatError) -> None:
        """Remove a file if it is damaged; one of another version may be another program's."""
        if isinstance(error, DamagedFileError):
            _log.warning("removing a damaged file: %s", error)
            with suppress(OSError):  # where nothing can be removed, it is passed over
                path.unlink()
        else:
            _log.warning("passing over a file: %s", error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time counts and evicts."""
        with (self.folder / ".lock").open("a") as file:
            flock(file, LOCK_EX)
            yield

    def _remove_left_behind(self) -> None:
        for path in self.folder.glob(f".*{SUFFIX}.*{PARTIAL}"):
            found = _regular(path)
            if found is not None and time.time() - found.st_mtime > LEFT_BEHIND_SECONDS:
                _remove_unused(path)


def token_key(ids: NDArray[np.int32]) -> str:
    """Digest of token ids."""
    return xxh3_128(ids.data).hexdigest()


def _mark_used(file: SavedFile) -> None:
    """Let a file count as used; one that cannot be changed can still be read."""
    with suppress(OSError):
        os.utime(file.file.fileno())


def _regular(path: Path) -> os.stat_result | None:
    """What the system says of a file; None if it is gone, hidden, or something else, such as a
    folder."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if S_ISREG(found.st_mode) else None


def _open_locked(path: Path) -> SavedFile:
    """The file that has this name once it is locked."""
    while True:
        file = SavedFile(path)
        flock(file.file, LOCK_SH)
        if _is_named(file.file):
            return file
        file.close()


def _is_named(file: BinaryIO) -> bool:
    """Whether an open file has not been removed or replaced."""
    return os.fstat(file.fileno()).st_nlink > 0


def _check_name(file: SavedFile, ids: NDArray[np.int32], fingerprint: Fingerprint) -> None:
    """Refuse a file that holds something else than its name says.

    Raises:
        DamagedFileError: it does, or its tokens have changed.
    """
    expected, found = fingerprint.fields(), file.fields["fingerprint"]
    wrong = any(differences({"fingerprint": expected}, {"fingerprint": found}))
    if wrong or not np.array_equal(file.tokens(), ids):
        raise DamagedFileError(
            f"{file.path}: it holds other tokens, or another model's, than its name says"
        )


def _remove_unused(path: Path) -> bool:
    """Remove a file unless somebody has it locked; whether it is gone."""
    try:
        with path.open("rb") as file:
            flock(file, LOCK_EX | LOCK_NB)
            if not _is_named(file):  # replaced, by one that may be in use
                return False
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True
