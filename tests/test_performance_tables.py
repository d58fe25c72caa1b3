"""The tables of the docs are those that the results give."""

from pathlib import Path

import pytest

from benchmarks import tables


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_results(page: Path) -> None:
    text = page.read_text()
    assert tables.with_tables(text) == text, "run `python -m benchmarks.tables`"


def test_every_table_is_shown() -> None:
    text = "".join(path.read_text() for path in tables.PAGES)
    assert {name for _, name, _ in tables.BLOCK.findall(text)} == tables.TABLES.keys()


def test_a_table_is_written_between_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.TABLES, "x", lambda: tables.table(["a", "b"], [["1", "2"]]))
    page = "before\n<!-- results: x -->\nstale\n<!-- end -->\nafter\n"
    lines = "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"
    assert tables.with_tables(page) == page.replace("stale\n", lines)
