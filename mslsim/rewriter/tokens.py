"""Tokens of preprocessed Metal Shading Language."""

import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\v]+)|(?P<newline>\n)|(?P<directive>\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*")|(?P<character>'(?:\\.|[^'\\\n])*')
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<word>[A-Za-z_$]\w*)
    |(?P<operator>::|->\*?|\.\.\.|<<=|>>=|<=|>=|==|!=|&&|\|\||<<|\+\+|--|[-+*/%&|^]=|.)""",
    re.VERBOSE,
)
LINE_MARKER = re.compile(r'#\s*(?:line\s+)?(\d+)\s+"([^"]*)"')
# They would mean nothing, or something else, to the host's compiler.
DROPPED_PRAGMA = re.compile(r"#\s*pragma\s+(?:METAL|unroll|nounroll)")


class MslSyntaxError(Exception):
    """The text is not MSL that the rewriter understands; the message begins with file:line."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the text, white space and line ends among them.

    Attributes:
        kind: Name of a group of `TOKEN`.
        text: The characters.
        file: The file that the line markers name.
        line: The line in that file.
        position: Index among all tokens of the text.
    """

    kind: str
    text: str
    file: str
    line: int
    position: int

    @property
    def is_word(self) -> bool:
        """Whether it is an identifier or a keyword."""
        return self.kind == "word"

    @property
    def has_meaning(self) -> bool:
        """Whether it is more than white space or a directive."""
        return self.kind not in {"space", "newline", "directive"}

    @property
    def where(self) -> str:
        """file:line."""
        return f"{self.file}:{self.line}"


def lex(text: str) -> list[Token]:
    """All tokens of a text; together they hold each of its characters, but some pragmas."""
    tokens: list[Token] = []
    file, line = "", 1
    begins_line = True
    for found in TOKEN.finditer(text):
        kind, spelled = str(found.lastgroup), found.group()
        if kind == "directive" and not begins_line:
            kind = "operator"
        dropped = kind == "directive" and DROPPED_PRAGMA.match(spelled)
        tokens.append(Token(kind, "" if dropped else spelled, file, line, len(tokens)))
        if kind == "newline":
            line += 1
            begins_line = True
        elif kind == "directive":
            if marker := LINE_MARKER.match(spelled):
                line, file = int(marker[1]) - 1, marker[2]
        elif kind != "space":
            begins_line = False
    return tokens
