"""Variables in threadgroup memory: `threadgroup float sums[32];` inside a function.

Each becomes a reference into memory that the threadgroup's threads share; `threadgroup float* p`
is an ordinary local.
"""

from collections.abc import Iterator

from mslsim.rewriter.source import Source

SPECIFIERS = {"const", "volatile", "static", "constexpr"}


def rewrite_threadgroup_variables(
    source: Source, begin: int, end: int, identifiers: Iterator[int]
) -> None:
    """Rewrites the threadgroup variables of a function's body; each takes an identifier."""
    i = begin
    while i < end:
        if source[i] == "threadgroup":
            first = first_specifier(source, begin, i)
            begins_statement = first == begin or source[first - 1] in {";", "{", "}", ":"}
            name = variable_name(source, i, end) if begins_statement else None
            if name is not None:
                i = rewrite_declaration(source, first, i, name, identifiers)
        i += 1


def first_specifier(source: Source, begin: int, i: int) -> int:
    """The first token of the declaration that has `threadgroup` at `i`."""
    while i > begin and source[i - 1] in SPECIFIERS:
        i -= 1
    while i > begin and source[i - 1] == ")" and (alignment := alignas(source, i - 1)) is not None:
        i = alignment
    return i


def alignas(source: Source, close: int) -> int | None:
    """The `alignas` whose parenthesis closes at `close`."""
    depth = 0
    for i in range(close, 0, -1):
        depth += (source[i] == ")") - (source[i] == "(")
        if depth == 0:
            return i - 1 if source[i - 1] == "alignas" else None
    return None


def variable_name(source: Source, i: int, end: int) -> int | None:
    """The name declared behind `threadgroup`; None where a pointer or reference is declared."""
    depth = 0
    while i < end:
        text = source[i]
        if depth == 0 and text in {"*", "&", "&&"}:
            return None
        if depth == 0 and text in {"[", ";", ",", "=", "{"}:
            return i - 1
        depth += (text == "<") - (text == ">")
        i = source.match(i) + 1 if text == "(" else i + 1
    return None


def rewrite_declaration(
    source: Source, first: int, space: int, name: int, identifiers: Iterator[int]
) -> int:
    """Rewrites `first .. threadgroup type name[dims], ...;`; the token that ends it."""
    end = source.find(";", name)
    specifiers = f"{source.text(first, space)} {source.text(space + 1, name)}"
    text = ""
    for variable, variable_end in source.split(name, end):
        dims_end = variable + 1
        while source[dims_end] == "[" and dims_end < variable_end:
            dims_end = source.match(dims_end) + 1
        if dims_end != variable_end:
            raise source.error(variable, f"{source[variable]} in threadgroup memory is initialized")
        identifier = next(identifiers)
        type_name = f"__msl_tgt{identifier}"
        text += (
            f"typedef {specifiers} {type_name}{source.text(variable + 1, dims_end)}; "
            f"{type_name}& {source[variable]} = "
            f"::metal::_msl::tgvar<{type_name}, {identifier}u>(); "
        )
    source.erase(first, end + 1)
    source.replace(first, text)
    return end
