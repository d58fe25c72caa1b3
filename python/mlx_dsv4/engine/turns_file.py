"""Sampled answers on disk, for other processes: digests and token ids, a line each.

A line ends in a digest of the rest: another id would be another answer, and nobody would notice.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from mlx_dsv4.cache.file import replacing

# Digest of the message, digest of its reasoning, whether it thinks, index of the answer, token ids.
Record = list[Any]

MOST_BYTES = 64 * 2**20

_log = logging.getLogger(__name__)


class TurnsFile:
    """An append-only file that several processes may use; its older half goes when it is large.

    Args:
        path: Of the file; its folder exists.
        vocab: Ids are below it.
    """

    def __init__(self, path: Path, vocab: int) -> None:
        self.path = path
        self._vocab = vocab

    def records(self) -> list[Record]:
        """What it holds, the oldest first; lines that are damaged are passed over, with a
        warning in the log."""
        try:
            lines = [line for line in self.path.read_bytes().splitlines() if line]
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("answers are not read: %s", error)
            return []
        records = list(self._checked(lines))
        if len(records) < len(lines):
            _log.warning("%s: %d damaged lines", self.path, len(lines) - len(records))
        return records

    def append(self, records: Sequence[Record]) -> None:
        """Add some; the log says what goes wrong."""
        # With a line's end before it: the last line may be one that a crash cut short.
        data = b"".join(b"\n" + _line(record) + b"\n" for record in records)
        try:
            if self.path.exists() and self.path.stat().st_size > MOST_BYTES:
                self._halve()
            with open(self.path, "ab", opener=_open_for_owner) as file:
                flock(file, LOCK_EX)
                file.write(data)
        except OSError as error:
            _log.warning("an answer is not kept: %s", error)

    def _halve(self) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        with replacing(self.path) as file:
            file.write(b"".join(lines[len(lines) // 2 :]))

    def _checked(self, lines: Sequence[bytes]) -> Iterator[Record]:
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(record, list) or not record:
                continue
            *fields, digest = record
            if self._is_record(fields) and digest == _digest(fields):
                yield fields

    def _is_record(self, record: Record) -> bool:
        if len(record) != 5:
            return False
        key, reasoning, thinks, answer, tokens = record
        return (
            isinstance(key, str)
            and isinstance(reasoning, str)
            and isinstance(thinks, bool)
            and isinstance(tokens, list)
            and all(type(t) is int and 0 <= t < self._vocab for t in tokens)
            and type(answer) is int
            and 0 <= answer <= len(tokens)
        )


def _open_for_owner(path: str, flags: int) -> int:
    """Token ids are text to whoever has the vocabulary."""
    return os.open(path, flags, 0o600)


def _line(record: Record) -> bytes:
    return json.dumps([*record, _digest(record)]).encode()


def _digest(record: Record) -> str:
    return xxh3_128(json.dumps(record).encode()).hexdigest()
