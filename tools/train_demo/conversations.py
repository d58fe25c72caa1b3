"""Questions and answers about the functions of a source file, made of their documentation."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.train_demo.corpus import Source

_MOST_ANSWER = 700
_MOST_LINES = 30


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question with its answer.

    Args:
        question: Of the user.
        reasoning: What the assistant thinks first; empty where it does not.
        answer: Of the assistant.
    """

    question: str
    reasoning: str
    answer: str


def exchanges(source: Source) -> Iterator[Exchange]:
    """Questions about the documented functions and classes of a module, in its order."""
    if source.is_test:
        return
    try:
        tree = ast.parse(source.text)
    except SyntaxError:
        return
    module = source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    yield from _about(tree, module, source.text.splitlines(), f"module `{module}`")


def _about(node: ast.AST, path: str, lines: list[str], place: str) -> Iterator[Exchange]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef):
            continue
        if child.name.startswith("_"):
            continue
        name = f"{path}.{child.name}"
        summary = _summary(ast.get_docstring(child))
        if summary:
            yield from _of_one(child, name, summary, lines, place)
        if isinstance(child, ast.ClassDef):
            yield from _about(child, name, lines, f"class `{child.name}`")


def _of_one(
    node: ast.FunctionDef | ast.ClassDef, name: str, summary: str, lines: list[str], place: str
) -> Iterator[Exchange]:
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    thought = f"`{node.name}` is a {kind} of the {place}. Its documentation says what it does."
    yield Exchange(f"What does `{name}` do?", thought, summary)
    body = lines[node.lineno - 1 : node.end_lineno]
    if isinstance(node, ast.ClassDef) or len(body) > _MOST_LINES:
        return
    indent = len(body[0]) - len(body[0].lstrip())
    code = "\n".join(line[indent:] for line in body)
    first = summary.split("\n", 1)[0]
    arguments = ", ".join(f"`{argument.arg}`" for argument in node.args.args) or "nothing"
    thought = f"The {kind} takes {arguments}. {first}"
    question = f"Write a {kind} `{node.name}`: {first}"
    yield Exchange(question, thought, f"```python\n{code}\n```")


def _summary(docstring: str | None) -> str:
    """The first paragraph, in one line, if it is a sentence of a sane length."""
    paragraph = re.split(r"\n\s*\n", (docstring or "").strip(), maxsplit=1)[0]
    text = " ".join(paragraph.split())
    return text if 20 <= len(text) <= _MOST_ANSWER and text[0].isalpha() else ""
