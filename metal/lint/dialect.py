"""Preprocessed Metal, rewritten to what clang's OpenCL C++ front end accepts.

The two languages share named address spaces with the same conversions, methods qualified by
them, ``half`` and vectors with swizzles; the driver defines Metal's address spaces as OpenCL's.
What OpenCL C++ refuses is rewritten here, and what it would not notice is checked here. Lines
stay where they are.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

CXX17 = 400  # the first version of MSL that is C++17 and has a generic `this`

POSITIONS = {
    f"{kind}_position_in_{space}"
    for kind, space in (("thread", "grid"), ("thread", "threadgroup"), ("threadgroup", "grid"))
} | {"threads_per_threadgroup", "threads_per_grid", "threadgroups_per_grid"}
INDICES = {
    *("thread_index_in_simdgroup", "thread_index_in_threadgroup", "threads_per_simdgroup"),
    *("simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup"),
}
ATTRIBUTES = {
    *("kernel", "host_name", "buffer", "max_total_threads_per_threadgroup"),
    *POSITIONS,
    *INDICES,
}
PRAGMAS = {"METAL fp contract(off)", "unroll", "clang loop unroll(full)"}

ATTRIBUTE = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
# One level of parentheses inside the arguments.
ATTRIBUTE_NAME = re.compile(r"\s*(\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*(?:,|$)")
INPUT = re.compile(r"(\w+)\s+\w+\s*\[\[\s*(\w+)\s*\]\]")
BUFFER = re.compile(r"\[\[\s*buffer\s*(\((?:[^()]|\([^()]*\))*\))\s*\]\]")
KERNEL = re.compile(r"(>\s*)?\[\[\s*kernel\b[^\]]*\]\]\s*void\s+(\w+)\s*\(")
INSTANTIATION = re.compile(r"decltype\(\s*(\w+)\s*<")
THREADGROUP_VARIABLE = re.compile(
    r"(?<=[;{}])(\s*)threadgroup\s+([^;*&(){}=]+?)\s+(\w+)((?:\s*\[[^\];]*\])*)\s*;"
)
VECTOR = r"(?:float|half|bfloat|u?int|u?short|u?char|u?long)[234]"
# Not a reference or pointer in parentheses, as in `float2 (&sums)[4]`.
VECTOR_OF = re.compile(rf"(?<![\w:.]){VECTOR}\s*\((?!\s*[*&]\s*\w+\s*\))")
CONSTANT_METHOD = re.compile(r"(\)\s*const\s+)constant\b(?=\s*[{;])")
# A scope's begin and end, and the end of a method's declarator.
SCOPE = re.compile(r"\b(?:struct|class)\s+(\w+)[^;{}()]*\{|\{|\}|\)\s*(?:const\s*)?(?=[{;])")


@dataclass(frozen=True)
class Problem:
    """Something in a shader that Apple's compiler would refuse, or that the project does.

    Attributes:
        file: Path of the shader or header.
        line: Line in it, from 1.
        message: What is wrong.
    """

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Segment:
    """Consecutive lines of one file in the preprocessor's output.

    Attributes:
        file: Where they come from.
        first_line: The line that the first of them is there.
        marker: The preprocessor's line that says so.
        is_library: Whether they are of the stand-in for Metal's library.
        text: The lines.
    """

    file: str
    first_line: int
    marker: str
    is_library: bool
    text: str

    def problem(self, at: int, message: str) -> Problem:
        """A problem at an offset in the text."""
        return Problem(self.file, self.first_line + self.text.count("\n", 0, at), message)


def segments(preprocessed: str) -> Iterator[Segment]:
    """Split the preprocessor's output at its line markers."""
    pieces = re.split(r'^(# \d+ "[^"\n]*"[ \d]*)\n', preprocessed, flags=re.MULTILINE)
    for marker, text in zip(pieces[1::2], pieces[2::2], strict=True):
        number, rest = marker[2:].split(" ", 1)
        _, file, flags = rest.split('"')
        yield Segment(file, int(number), marker, "3" in flags.split(), text)


def unknown_attributes(segment: Segment) -> Iterator[Problem]:
    """Attributes that Metal does not have, or that the project has no use for."""
    for attribute in ATTRIBUTE.finditer(segment.text):
        names = ATTRIBUTE_NAME.findall(attribute[1])
        for name in names or [attribute[1]]:
            if name not in ATTRIBUTES:
                yield segment.problem(attribute.start(), f"unknown attribute [[{name}]]")


def wrong_inputs(segment: Segment) -> Iterator[Problem]:
    """Positions and indices of threads declared with a type that Metal does not give them."""
    for given in INPUT.finditer(segment.text):
        kind, attribute = given.groups()
        vector = "[23]?" if attribute in POSITIONS else ""
        if attribute in POSITIONS | INDICES and not re.fullmatch(f"u(?:int|short){vector}", kind):
            yield segment.problem(given.start(), f"[[{attribute}]] must not be of type {kind}")


def unknown_pragmas(segment: Segment) -> Iterator[Problem]:
    """Pragmas that Metal's compiler would ignore without a word."""
    for pragma in re.finditer(r"^[ \t]*#[ \t]*pragma (.*)$", segment.text, re.MULTILINE):
        if pragma[1].strip() not in PRAGMAS:
            yield segment.problem(pragma.start(), f"unknown pragma {pragma[1].strip()!r}")


def kernels_without_instance(pieces: list[Segment]) -> Iterator[Problem]:
    """Kernel templates that no ``instantiate_kernel`` line names: nothing checks their bodies."""
    instantiated = {
        name for piece in pieces for name in INSTANTIATION.findall(piece.text.replace("\n", " "))
    }
    for piece in pieces:
        for kernel in KERNEL.finditer(piece.text):
            is_template, name = kernel[1] is not None, kernel[2]
            if is_template and name not in instantiated:
                message = f"no instantiate_kernel line names the kernel {name}"
                yield piece.problem(kernel.start(2), message)


def blank(text: str) -> str:
    """As many line ends as a text has."""
    return "\n" * text.count("\n")


def threadgroup_reference(variable: re.Match[str]) -> str:
    """A threadgroup variable as a reference to storage: OpenCL has them in kernels alone."""
    space, *parts = variable.groups()
    kind, name, sizes = (" ".join(part.split()) for part in parts)
    storage = f"typename lint_id<{kind}{sizes}>::type"
    lines = blank(variable[0][len(space) :])
    return f"{space}threadgroup {storage}& {name} = lint_storage<{storage}>();{lines}"


def with_thread_methods(text: str) -> str:
    """Methods without an address space, with ``thread``: what they are before MSL 4."""
    edits: list[int] = []
    scopes: list[str | None] = []  # name of the struct, None for other scopes
    begin = 0  # of the current declaration
    for found in SCOPE.finditer(text):
        token = found[0]
        if token.startswith(")"):
            declaration = text[begin : found.start()]
            name = scopes[-1] if scopes else None
            other = re.search(rf"\bstatic|\busing\b|=|~|(?<!\w){name}\s*\(", declaration)
            if name is not None and not other and "(" in declaration:
                edits.append(found.start() + len(token.rstrip()))
            continue
        if token == "}":
            if scopes:
                scopes.pop()
        else:
            scopes.append(found[1])
        begin = found.end()
    for at in reversed(edits):
        text = f"{text[:at]} thread{text[at:]}"
    return text


def opencl(text: str, version: int) -> str:
    """A segment of Metal as OpenCL C++."""
    text = BUFFER.sub(r'__attribute__((annotate("buffer", \1)))', text)
    text = ATTRIBUTE.sub(lambda attribute: blank(attribute[0]), text)
    text = THREADGROUP_VARIABLE.sub(threadgroup_reference, text)
    text = VECTOR_OF.sub(lambda vector: f"lint_vector<{vector[0][:-1].strip()}>(", text)
    text = CONSTANT_METHOD.sub(r"\1__constant", text)
    return text if version >= CXX17 else with_thread_methods(text)


def translate(preprocessed: str, version: int) -> tuple[str, list[Problem]]:
    """Preprocessed Metal as OpenCL C++, and what is wrong that OpenCL would not notice.

    Args:
        preprocessed: Output of the preprocessor, with line markers.
        version: Of the language, as in ``__METAL_VERSION__``.
    """
    text: list[str] = []
    own: list[Segment] = []
    problems: list[Problem] = []
    for segment in segments(preprocessed):
        body = segment.text
        if not segment.is_library:
            own.append(segment)
            problems += unknown_attributes(segment)
            problems += wrong_inputs(segment)
            problems += unknown_pragmas(segment)
            body = opencl(body, version)
        text.append(f"{segment.marker}\n{body}")
    problems += kernels_without_instance(own)
    return "".join(text), problems
