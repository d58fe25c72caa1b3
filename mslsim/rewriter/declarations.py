"""Where a declaration ends and what it declares, without understanding its types."""

from __future__ import annotations

from dataclasses import dataclass, field

from mslsim.rewriter.source import Source

Range = tuple[int, int]

# A parenthesis behind one of these does not begin a parameter list.
NOT_FUNCTIONS = {"decltype", "alignas", "__attribute__", "sizeof", "noexcept"}
ACCESS = {"public", "private", "protected"}


@dataclass
class Declaration:
    """One declaration.

    Attributes:
        start: Its first token, `template` included.
        head: Its first token after `template <...>`.
        template: Its template parameters, each a range; None if it is no template.
        header_end: The token that ends its header: of a body, an initializer, or `;`.
        parameters: The parenthesis that opens a parameter list, if there is one.
        classes: Bodies of the classes that it defines, from brace to brace.
        body: A function's body, from brace to brace.
        initialized: Whether it has a `= ...`.
        end: The token behind it.
    """

    start: int
    head: int
    template: list[Range] | None = None
    header_end: int = -1
    parameters: int | None = None
    classes: list[Range] = field(default_factory=list)
    body: Range | None = None
    initialized: bool = False
    end: int = -1

    @property
    def is_instantiation(self) -> bool:
        """Whether it is `template ...;` without parameters."""
        return self.header_end < 0


def read_declaration(source: Source, start: int, end: int) -> Declaration:
    """The declaration that begins at `start`, in a scope that ends at `end`."""
    head = start
    template: list[Range] | None = None
    while source[head] == "template" and source[head + 1] == "<":
        close = source.match_angle(head + 1)
        template = source.split(head + 2, close)
        head = close + 1
    declaration = Declaration(start, head, template)
    if source[head] == "template":
        declaration.end = source.find(";", head) + 1
    else:
        _Reader(source, declaration, end).read()
    return declaration


class _Reader:
    """Walks a declaration from its head to its last token."""

    def __init__(self, source: Source, declaration: Declaration, end: int) -> None:
        self.source = source
        self.declaration = declaration
        self.end = end
        self.defines_class = False
        self.defines_enum = False
        self.in_initializers = False  # of a constructor

    @property
    def in_header(self) -> bool:
        """Whether neither parameters nor an initializer have begun."""
        return self.declaration.parameters is None and not self.declaration.initialized

    def read(self) -> None:
        """Fills the declaration."""
        source, declaration = self.source, self.declaration
        i = declaration.head
        while i < self.end and declaration.end < 0:
            if source.is_attribute(i):
                i = source.match(i) + 1
            elif source.is_word(i) and self.in_header:
                i = self.word(i)
            elif source[i] == "<" and self.in_header and source.is_word(i - 1):
                i = source.match_angle(i) + 1
            else:
                i = self.operator(i)
        if declaration.end < 0:
            raise source.error(declaration.start, "a declaration has no end")

    def word(self, i: int) -> int:
        """Takes a word of the header; the next token."""
        text = self.source[i]
        if text == "operator":
            return self.operator_name(i + 1)
        self.defines_class |= text in {"struct", "class", "union"}
        self.defines_enum |= text == "enum"
        return i + 1

    def operator_name(self, i: int) -> int:
        """Takes what follows `operator` and the parameters; the next token."""
        source = self.source
        if source[i] in {"(", "["}:
            i += 2
        elif not source.is_word(i):
            while source[i] != "(":
                i += 1
        else:
            while source[i] != "(":
                i = source.match_angle(i) + 1 if source[i] == "<" else i + 1
        self.declaration.parameters = i
        return source.match(i) + 1

    def operator(self, i: int) -> int:
        """Takes any other token; the next one."""
        source, declaration = self.source, self.declaration
        text = source[i]
        if text == "(" and self.in_header and source[i - 1] not in NOT_FUNCTIONS:
            declaration.parameters = i
        if text in {"(", "["}:
            return source.match(i) + 1
        if text == "{":
            return self.brace(i)
        if text == ";":
            self.end_header(i)
            declaration.end = i + 1
        elif text == "=" and not self.in_initializers:
            self.end_header(i)
            declaration.initialized = True
        elif text == ":" and declaration.parameters is not None and not declaration.initialized:
            self.end_header(i)
            self.in_initializers = True
        return i + 1

    def brace(self, i: int) -> int:
        """Takes a body, a class, or an initializer in braces; the next token."""
        source, declaration = self.source, self.declaration
        close = source.match(i)
        if declaration.parameters is not None and not declaration.initialized:
            initializes_member = source.is_word(i - 1) or source[i - 1] == ">"
            if not (self.in_initializers and initializes_member):
                self.end_header(i)
                declaration.body = (i, close)
                declaration.end = close + 1
        elif self.defines_class and not self.defines_enum and not declaration.initialized:
            self.end_header(i)
            declaration.classes.append((i, close))
            self.defines_class = False
        return close + 1

    def end_header(self, i: int) -> None:
        """Marks the end of the header, unless it was there already."""
        if self.declaration.header_end < 0:
            self.declaration.header_end = i
