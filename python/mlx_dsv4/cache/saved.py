"""Caches kept over a restart: save, load, and what makes a file one of this model."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlx_dsv4.cache.cache import Cache
from mlx_dsv4.cache.file import Bytes, SectionFile, file_bytes, replacing, write_sections
from mlx_dsv4.cache.fingerprint import Fingerprint, differences
from mlx_dsv4.cache.pages import expect_filling
from mlx_dsv4.cache.plan import CachePlan
from mlx_dsv4.cache.snapshot import Snapshot
from mlx_dsv4.errors import PlanError, PromptError, SnapshotError
from mlx_dsv4.paths import usable_path
from mlx_dsv4.token_ids import check_token_ids

TOKEN = np.dtype("<i4")
LOGIT = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class SavedCache:
    """What a file held.

    Attributes:
        cache: At the position it was saved at.
        tokens: The ids it holds, one per position.
        logits: ``[vocab]`` float32 of the token after them, if they were saved.
    """

    cache: Cache
    tokens: list[int]
    logits: NDArray[np.float32] | None


def save_cache(
    path: str | os.PathLike[str],
    cache: Cache,
    *,
    tokens: Sequence[int],
    logits: ArrayLike | None = None,
    snapshot: Snapshot | None = None,
) -> None:
    """Write a position of a cache to a file, in place of what the path holds or links to.

    A file of the same name stays as it was until this one is complete and on disk. Rows are
    written from where they lie: nothing is copied in memory but a snapshot.

    Args:
        path: Of the file; its folder exists.
        cache: May be used meanwhile by its own thread, to append.
        tokens: The ids that the position holds, exactly.
        logits: ``[vocab]`` float32 of the token after them.
        snapshot: The position; the present one if None.

    Raises:
        PromptError: the tokens or logits are not those of the position, by their number or range.
        SnapshotError: the cache does not hold the snapshot's rows, or has lost them meanwhile.
        CacheStateError: without a snapshot, the cache is poisoned.
        OSError: the file cannot be written.
    """
    path = usable_path(path)
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "must be a regular file to be replaced", str(path))
    snapshot = cache.snapshot() if snapshot is None else snapshot
    cache.check_holds(snapshot)
    sections: dict[str, Bytes] = {"tokens": held_ids(tokens, snapshot).view(np.uint8)}
    if logits is not None:
        sections["logits"] = _logit_bytes(logits, snapshot)
    sections["snapshot"] = snapshot.data
    with replacing(path) as file, cache.lend_rows(snapshot) as layers:
        for index, rows in enumerate(layers):
            sections |= {f"{kind}.{index}": memory for kind, memory in rows.items() if len(memory)}
        write_sections(file, _fields(snapshot), sections)


def load_cache(
    path: str | os.PathLike[str], plan: CachePlan, fingerprint: Fingerprint
) -> SavedCache:
    """Read a file into a cache of its own.

    Args:
        path: Of a file from :func:`save_cache`.
        plan: Sizes of the cache to make; its capacity may differ from that of the saved one.
        fingerprint: What the rows must depend on.

    Raises:
        OSError: the file cannot be opened.
        FileFormatError: it is not a saved cache, or damaged.
        SnapshotError: it is of another model, row format or tokenizer; names every field.
        PlanError: it holds more tokens than the plan, or the plan is of another model.
        AllocationError: the cache does not fit in memory.
    """
    with SavedFile(path) as file:
        return file.load(plan, fingerprint)


class SavedFile(SectionFile):
    """An open saved cache: its tokens can be looked at before anything is allocated.

    Attributes:
        position: Tokens it holds.

    Raises:
        OSError, FileFormatError: as :func:`load_cache`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        position = self.fields.get("position")
        if self.fields.keys() != {"fingerprint", "position"} or type(position) is not int:
            self.close()
            raise self._error("the header must hold fingerprint, position and sections")
        if self.n_bytes.get("tokens") != position * TOKEN.itemsize:
            self.close()
            raise self._error(
                f"position {position}: sections must begin with {TOKEN.itemsize} bytes a token; "
                f"got {self.n_bytes.get('tokens')} bytes of the name 'tokens'"
            )
        self.position: int = position

    @property
    def has_logits(self) -> bool:
        return "logits" in self.n_bytes

    def tokens(self) -> NDArray[np.int32]:
        """The ids, ``[position]``.

        Raises:
            FileFormatError: they are damaged.
        """
        return self.read("tokens").view(TOKEN)

    def load(self, plan: CachePlan, fingerprint: Fingerprint) -> SavedCache:
        """As :func:`load_cache`."""
        self.check(plan, fingerprint)
        cache = Cache(plan, fingerprint)
        tokens, data = self.tokens(), self.read("snapshot")
        for index, rows in enumerate(cache.closed_rows(self.position)):
            for kind, memory in rows.items():
                if len(memory):
                    expect_filling(memory)
                    self.read_into(f"{kind}.{index}", memory)
        logits = self.read("logits").view(LOGIT) if self.has_logits else None
        cache.begin_at(self.position, data)
        return SavedCache(cache, tokens.tolist(), logits)

    def check(self, plan: CachePlan, fingerprint: Fingerprint) -> None:
        """Refuse a file that a cache of this plan and fingerprint cannot continue from.

        Raises:
            SnapshotError, PlanError, FileFormatError: as :func:`load_cache`.
        """
        expected_fields = {"fingerprint": fingerprint.fields()}
        wrong = list(differences(expected_fields, {"fingerprint": self.fields["fingerprint"]}))
        if wrong:
            raise SnapshotError(f"{self.path}: {'; '.join(wrong)}")
        if (plan.config, plan.row_dtype) != (fingerprint.config, fingerprint.row_format):
            raise PlanError(f"{self.path}: the plan must be of the fingerprint's model and rows")
        if self.position > plan.capacity_tokens:
            raise PlanError(
                f"{self.path}: the cache must hold {self.position} tokens; "
                f"got a plan for {plan.capacity_tokens}"
            )
        expected = _section_sizes(plan, self.position, has_logits=self.has_logits)
        if list(expected.items()) != list(self.n_bytes.items()):
            wrong = list(differences({"sections": expected}, {"sections": self.n_bytes}))
            order = f"sections must be in the order {', '.join(expected)}"
            raise self._error(f"position {self.position}: {'; '.join(wrong) or order}")


def saved_bytes(plan: CachePlan, snapshot: Snapshot, *, has_logits: bool) -> int:
    """Bytes of the file of a saved position."""
    sizes = _section_sizes(plan, snapshot.position, has_logits=has_logits)
    return file_bytes(_fields(snapshot), sizes)


def _fields(snapshot: Snapshot) -> dict[str, object]:
    return {"fingerprint": snapshot.fingerprint.fields(), "position": snapshot.position}


def _section_sizes(plan: CachePlan, position: int, *, has_logits: bool) -> dict[str, int]:
    """Bytes of each section at a position, in the order of the file."""
    sizes = {"tokens": position * TOKEN.itemsize}
    if has_logits:
        sizes["logits"] = plan.config.vocab * LOGIT.itemsize
    sizes["snapshot"] = plan.snapshot_bytes
    for index, layer in enumerate(plan.layers):
        rows = layer.closed_bytes(position)
        sizes |= {f"{kind}.{index}": n_bytes for kind, n_bytes in rows.items() if n_bytes}
    return sizes


def held_ids(tokens: Sequence[int], snapshot: Snapshot) -> NDArray[np.int32]:
    """The ids that a snapshot's position holds, as far as their number and range can tell.

    Raises:
        PromptError: they cannot be.
    """
    if len(tokens) != snapshot.position:
        raise PromptError(
            f"tokens must be the {snapshot.position} ids that the position holds; got {len(tokens)}"
        )
    return np.array(check_token_ids(tokens, snapshot.fingerprint.config.vocab), TOKEN)


def _logit_bytes(logits: ArrayLike, snapshot: Snapshot) -> Bytes:
    values = np.ascontiguousarray(logits, LOGIT)
    vocab = snapshot.fingerprint.config.vocab
    if values.shape not in ((vocab,), (1, vocab)):
        raise PromptError(f"logits must be [{vocab}], one per token; got {list(values.shape)}")
    return values.reshape(-1).view(np.uint8)
