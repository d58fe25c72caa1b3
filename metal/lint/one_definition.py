"""The rule of one definition, across shaders: one ahead-of-time library holds them all.

Functions with one name and the same parameters, or structs with one name, would be taken for the
same thing there, whichever file they are in; run-time compilation, file by file, would not show
it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from dialect import Problem

# As clang-format leaves them: a definition begins a line and ends at the first "}" that does.
FUNCTION = re.compile(
    r"^(?!struct|enum|namespace|using|#|//|\[\[)\w[^;{}()=]*?\b(\w+)\(([^;{}]*)\) \{\n?"
    r"(.*?)(?:^\}|\}$)",
    re.MULTILINE | re.DOTALL,
)
STRUCT = re.compile(r"^struct (\w+(?:<[^>\n]*>)?) \{(.*?)^\};", re.MULTILINE | re.DOTALL)


def words(text: str) -> str:
    """A text without comments and with single spaces."""
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


def definitions(text: str) -> Iterator[tuple[str, str, int]]:
    """Every function and struct of a file: what tells it from others, its text, its line."""
    for function in FUNCTION.finditer(text):
        name, parameters, body = function.groups()
        line = text.count("\n", 0, function.start(1)) + 1
        yield f"{name}({words(parameters)})", words(body), line
    for struct in STRUCT.finditer(text):
        name, body = struct.groups()
        yield f"struct {name}", words(body), text.count("\n", 0, struct.start()) + 1


def clashes(paths: list[Path]) -> Iterator[Problem]:
    """Definitions that differ from one of the same thing in another file.

    Args:
        paths: The shaders; the headers beside them count as well.
    """
    files = sorted({*paths, *(header for path in paths for header in path.parent.glob("*.h"))})
    first: dict[str, tuple[str, Path]] = {}
    for path in files:
        for key, body, line in definitions(path.read_text()):
            other_body, other = first.setdefault(key, (body, path))
            if body != other_body and path != other:
                message = f"{key} is something else in {other.name}; one library holds both"
                yield Problem(str(path), line, message)
