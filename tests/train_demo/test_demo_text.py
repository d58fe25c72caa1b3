"""What the demo model is trained on."""

from pathlib import Path

import pytest

from tools.train_demo.conversations import Exchange, exchanges
from tools.train_demo.corpus import Source, standard_library
from tools.train_demo.schedule import CPU_TOKENS, Schedule, Stage, full_schedule

MODULE = '''
"""A module."""


def double(number, times=1):
    """Return the number, doubled.

    More about it.
    """
    return number * 2 ** times


def _hidden():
    """Nobody asks about this function."""


class Pair:
    """Two values that belong together."""

    def swap(self):
        return self

    def first(self):
        """Return
        the first value."""
        return self.a
'''


def write(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def test_sources_are_read_by_name_without_tables_and_other_alphabets(tmp_path: Path) -> None:
    line = b"x = 1  # a line of forty bytes, this one\n" * 10
    write(tmp_path, "b.py", line.replace(b"\n", b"\r\n"))
    write(tmp_path, "a/c.py", b"\tif x:\n" + line)
    write(tmp_path, "encodings/d.py", line)
    write(tmp_path, "short.py", b"x = 1\n")
    write(tmp_path, "greek.py", line + "αβγδεζηθικλμνξοπρσ".encode())
    write(tmp_path, "latin.py", line + b"\xe4")
    found = list(standard_library(tmp_path))
    assert [source.name for source in found] == ["a/c.py", "b.py"]
    assert found[0].text.startswith("    if x:\n")
    assert found[1].text == line.decode()


def test_one_file_in_forty_is_held_out_wherever_it_is() -> None:
    names = [f"module_{i}.py" for i in range(4000)]
    held_out = [name for name in names if Source(name, "").held_out]
    assert 60 <= len(held_out) <= 140
    # CRC-32 of the name is a multiple of forty.
    assert "module_118.py" in held_out
    assert Source("heapq.py", "x").held_out == Source("heapq.py", "y").held_out


@pytest.mark.parametrize(
    ("name", "is_test"),
    [
        ("test/test_os.py", True),
        ("unittest/test/support.py", True),
        ("idlelib/idle_test/test_undo.py", True),
        ("unittest/case.py", False),
        ("doctest.py", False),
    ],
)
def test_tests_are_known_by_their_folder(name: str, is_test: bool) -> None:
    assert Source(name, "").is_test == is_test


def test_questions_are_about_documented_names_and_answers_are_their_text() -> None:
    code = (
        "```python\ndef double(number, times=1):\n"
        '    """Return the number, doubled.\n\n    More about it.\n    """\n'
        "    return number * 2 ** times\n```"
    )
    documented = "Its documentation says what it does."
    assert list(exchanges(Source("pkg/pairs.py", MODULE)))[:3] == [
        Exchange(
            "What does `pkg.pairs.double` do?",
            f"`double` is a function of the module `pkg.pairs`. {documented}",
            "Return the number, doubled.",
        ),
        Exchange(
            "Write a function `double`: Return the number, doubled.",
            "The function takes `number`, `times`. Return the number, doubled.",
            code,
        ),
        Exchange(
            "What does `pkg.pairs.Pair` do?",
            f"`Pair` is a class of the module `pkg.pairs`. {documented}",
            "Two values that belong together.",
        ),
    ]
    questions = [exchange.question for exchange in exchanges(Source("pairs.py", MODULE))]
    assert questions[3:] == [
        "What does `pairs.Pair.first` do?",
        "Write a function `first`: Return the first value.",
    ]
    assert list(exchanges(Source("test/pairs.py", MODULE))) == []
    assert list(exchanges(Source("pairs.py", "def f(:"))) == []


def test_the_rate_rises_then_falls_as_a_cosine() -> None:
    first, last = Stage(6, 8, 4, 2, False, False), Stage(4, 16, 2, 1, True, True)
    schedule = Schedule((first, last), peak=1.0, warm_up=2, least=0.2)
    assert schedule.steps == 10
    assert [schedule.stage(step) for step in (0, 5, 6, 9)] == [first, first, last, last]
    rates = [schedule.rate(step) for step in (0, 1, 2, 6, 10)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.6, 0.2])
    with pytest.raises(IndexError, match="below 10"):
        schedule.stage(10)


def test_a_cpu_holds_activations_of_few_rows_and_trains_on_all() -> None:
    small, full = full_schedule(0.01, CPU_TOKENS), full_schedule(0.01)
    assert [stage.rows_at_once for stage in small.stages] == [4, 4, 1]
    assert [stage.rows_at_once for stage in full.stages] == [32, 32, 2]
    assert [stage.rows for stage in small.stages] == [stage.rows for stage in full.stages]
    assert small.steps == full.steps == 19 + 5 + 1
