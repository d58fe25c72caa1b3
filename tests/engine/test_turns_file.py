"""The file of sampled answers: what is whole comes back, and what is damaged costs itself alone."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_128

from mlx_dsv4.engine.turns_file import Record, TurnsFile


@pytest.fixture
def file(tmp_path: Path) -> TurnsFile:
    return TurnsFile(tmp_path / "turns.jsonl", 1024)


def record(number: int, *tokens: int) -> Record:
    return [f"key {number}", "reasoning", True, 1, list(tokens)]


def test_records_come_back_in_their_order(file: TurnsFile) -> None:
    assert file.records() == []
    file.append([record(1, 5, 6), record(2, 7)])
    file.append([record(3, 8)])
    assert file.records() == [record(1, 5, 6), record(2, 7), record(3, 8)]


def line_of(record: list[Any]) -> bytes:
    """A line that is whole, whatever it says."""
    digest = xxh3_128(json.dumps(record).encode()).hexdigest()
    return json.dumps([*record, digest]).encode()


@pytest.mark.parametrize(
    "line",
    [
        b'["key", "r", tru',
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"[" * 100_000,
        b'["key", "r", true, 0, [1, 2]]',
        line_of(["key", "r", True, 0]),
        line_of(["key", "r", True, 3, [1, 2]]),
        line_of(["key", "r", True, -1, [1, 2]]),
        line_of(["key", "r", 1, 0, [1, 2]]),
        line_of(["key", "r", True, 0, [1, 1024]]),
        line_of(["key", "r", True, 0, [1, 2.0]]),
        line_of(["key", "r", True, 0, [True]]),
        line_of([3, "r", True, 0, [1]]),
    ],
)
def test_a_damaged_line_costs_itself_alone(
    file: TurnsFile, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.append([record(1, 5)])
    with file.path.open("ab") as raw:
        raw.write(line)  # without the end of the line, as a crash leaves it
    file.append([record(2, 6)])
    assert file.records() == [record(1, 5), record(2, 6)]
    assert "1 damaged lines" in caplog.text


def test_no_changed_byte_gives_other_tokens(file: TurnsFile) -> None:
    file.append([record(1, 123, 45)])
    whole = file.path.read_bytes()
    for at in range(len(whole)):
        for byte in b"7 ,e":
            file.path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            assert file.records() in ([], [record(1, 123, 45)])


def test_the_older_half_goes_when_it_is_large(
    file: TurnsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_dsv4.engine.turns_file.MOST_BYTES", 900)
    for number in range(60):
        file.append([record(number, number)])
        assert file.path.stat().st_size < 1000
    numbers = [tokens[0] for *_, tokens in file.records()]
    assert numbers == list(range(numbers[0], 60))
    assert len(numbers) > 5


def test_nobody_but_its_owner_may_read_it(file: TurnsFile) -> None:
    before = os.umask(0)
    try:
        file.append([record(1, 5)])
    finally:
        os.umask(before)
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = TurnsFile(tmp_path / "none" / "turns.jsonl", 1024)
    nowhere.append([record(1, 5)])
    assert "an answer is not kept" in caplog.text
    assert nowhere.records() == []
    TurnsFile(tmp_path, 1024).records()
    assert "answers are not read" in caplog.text
