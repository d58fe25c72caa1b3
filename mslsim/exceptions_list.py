"""Lists of exceptions that people keep: what, where in the shaders, and the reason."""

import re
from pathlib import Path


def read_exceptions(path: Path, marks: str) -> dict[tuple[str, ...], str]:
    """Reasons by name, from blocks of ``file function``, a line for each mark, and the reason.

    Args:
        path: The list; lines with ``#`` are comments, an empty line ends a block.
        marks: The first characters of the lines, as ``-+``.

    Raises:
        ValueError: a block has another form, or one is there twice.
    """
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    reasons: dict[tuple[str, ...], str] = {}
    for block in filter(None, map(str.strip, re.split(r"\n{2,}", text))):
        heading, *lines = block.splitlines()
        marked, reason = lines[: len(marks)], " ".join(lines[len(marks) :])
        if [line[:2] for line in marked] != [f"{mark} " for mark in marks] or not reason:
            raise ValueError(f"{path.name}: must be lines with {marks} and a reason; got\n{block}")
        file, _, place = heading.partition(" ")
        name = (file, place, *(line[2:].strip() for line in marked))
        if name in reasons:
            raise ValueError(f"{path.name}: must name everything once; got\n{block}")
        reasons[name] = reason
    return reasons
