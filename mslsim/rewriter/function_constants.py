"""Function constants: their values are given when a compiled library is loaded."""

import re

from mslsim.rewriter.declarations import Declaration
from mslsim.rewriter.source import Source


def rewrite_function_constant(source: Source, declaration: Declaration) -> None:
    """Makes `constant T name [[function_constant(i)]];` ask the runtime for its value."""
    begin, end = declaration.head, declaration.end - 1
    for first, last in source.attributes(begin, end):
        if source[first] != "function_constant":
            continue
        name = next(i for i in range(begin, end) if source.is_attribute(i)) - 1
        words = re.sub(r"\b(?:constexpr|const|static)\b", "", source.text(begin, name))
        type_name, index = words.strip(), source.text(first + 2, last - 1)
        variable = source[name]
        source.erase(begin, end)
        source.replace(
            begin,
            f"extern const {type_name} {variable}; static_assert(true); "
            f"const {type_name} {variable} = "
            f'::metal::_msl::fc<{type_name}>({index}, "{variable}", &{variable})',
        )
        return
