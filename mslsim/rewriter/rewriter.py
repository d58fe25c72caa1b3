"""Preprocessed MSL to C++17.

The input has its macros expanded, and line markers that keep every message on the line of the
`.metal` file. Kernels get a binding table and announce themselves when the library is loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count

from mslsim.rewriter.address_spaces import Overloads, erase_address_spaces, lacks_address_space
from mslsim.rewriter.declarations import ACCESS, Declaration, read_declaration
from mslsim.rewriter.function_constants import rewrite_function_constant
from mslsim.rewriter.kernels import Kernel, is_kernel, read_kernel
from mslsim.rewriter.literals import rewrite_literals
from mslsim.rewriter.source import Source
from mslsim.rewriter.threadgroup_variables import rewrite_threadgroup_variables


@dataclass(frozen=True)
class Rewritten:
    """A program in C++, and the host names of its kernels."""

    text: str
    kernels: tuple[str, ...]


def rewrite(text: str, only: Collection[str] | None = None) -> Rewritten:
    """Rewrites a preprocessed shader.

    Args:
        text: What the C++ preprocessor wrote.
        only: Host names of the kernels that can be launched; all if None.

    Raises:
        MslSyntaxError: the text is not MSL, or Apple's compiler refuses it.
    """
    return Rewriter(text, only).run()


class Rewriter:
    """Rewrites one program, scope by scope."""

    def __init__(self, text: str, only: Collection[str] | None) -> None:
        self.source = Source(text)
        self.only = only
        self.kernels: dict[str, list[Kernel]] = defaultdict(list)
        self.host_names: list[str] = []
        self.identifiers = count()

    def run(self) -> Rewritten:
        """Rewrites everything."""
        rewrite_literals(self.source)
        erase_address_spaces(self.source)
        self.scope(0, len(self.source), in_class=False)
        self.source.erase_attributes()
        for i, token in enumerate(self.source.tokens):
            if token.is_word and token.text == "kernel":
                self.source.replace(i, "")
        return Rewritten(self.source.rewritten(), tuple(self.host_names))

    def scope(self, i: int, end: int, *, in_class: bool) -> None:
        """Rewrites the declarations of a namespace or a class."""
        source = self.source
        overloads = Overloads()
        while i < end:
            if source[i] == ";":
                i += 1
            elif source[i] in ACCESS and source[i + 1] == ":":
                i += 2
            elif (body := self.namespace_body(i)) is not None:
                close = source.match(body)
                self.scope(body + 1, close, in_class=False)
                i = close + 1
            else:
                declaration = read_declaration(source, i, end)
                self.declaration(declaration, overloads, in_class=in_class)
                i = declaration.end

    def namespace_body(self, i: int) -> int | None:
        """The brace that opens a namespace, if one begins here."""
        source = self.source
        if source[i] == "inline" and source[i + 1] == "namespace":
            i += 1
        if source[i] != "namespace":
            return None
        while source[i] not in {"{", ";", "="}:
            i += 1
        return i if source[i] == "{" else None

    def declaration(
        self, declaration: Declaration, overloads: Overloads, *, in_class: bool
    ) -> None:
        """Rewrites one declaration."""
        source = self.source
        if declaration.is_instantiation:
            self.instantiation(declaration)
            return
        for open_, close in declaration.classes:
            if overloads.repeats(source, (declaration.start, open_)):
                source.erase(declaration.start, declaration.end)
                return
            self.scope(open_ + 1, close, in_class=True)
        if declaration.parameters is not None and (
            declaration.body or in_class or not declaration.initialized
        ):
            header = (declaration.start, declaration.header_end)
            if overloads.repeats(source, header):
                source.erase(declaration.start, declaration.end)
                return
        if declaration.body is not None:
            self.function(declaration)
        elif not in_class:
            rewrite_function_constant(source, declaration)

    def function(self, declaration: Declaration) -> None:
        """Rewrites a function with its body."""
        assert declaration.body is not None
        assert declaration.parameters is not None
        begin, close = declaration.body
        self.check_parameters(declaration.parameters)
        rewrite_threadgroup_variables(self.source, begin + 1, close, self.identifiers)
        # The table of a specialization is its template's.
        specialization = self.source[declaration.parameters - 1] == ">"
        if is_kernel(self.source, declaration) and not specialization:
            self.kernel(declaration, close)

    def check_parameters(self, open_: int) -> None:
        """Refuses pointers and references without an address space, as Apple's compiler does."""
        source = self.source
        for begin, end in source.split(open_ + 1, source.match(open_)):
            if lacks_address_space(source, (begin, end)):
                spelled = " ".join(source.words(begin, end))
                raise source.error(begin, f"parameter `{spelled}` has no address space")

    def kernel(self, declaration: Declaration, close: int) -> None:
        """Adds the table of a kernel behind it, and its registration if it is no template."""
        source = self.source
        assert declaration.parameters is not None
        name = source[declaration.parameters - 1]
        kernel = read_kernel(source, declaration, len(self.kernels[name]))
        self.kernels[name].append(kernel)
        source.insert_after(close, kernel.binding_table() + kernel.index_checks())
        if kernel.template_arguments is None:
            host_name = self.host_name(declaration.start, declaration.parameters) or name
            self.register(close, host_name, kernel, "", name)

    def instantiation(self, declaration: Declaration) -> None:
        """Registers `template [[host_name("...")]] [[kernel]] decltype(f<...>) f<...>;`."""
        source = self.source
        begin, end = declaration.head, declaration.end - 1
        tokens = list(source.without_attributes(begin + 1, end))
        attributes = [source[first] for first, _ in source.attributes(begin, end)]
        if "kernel" not in attributes and "kernel" not in (source[i] for i in tokens):
            return
        host_name = self.host_name(begin, end)
        if not host_name:
            raise source.error(begin, "a kernel is instantiated without [[host_name(...)]]")
        first = next(i for i in tokens if source[i] not in {"kernel", "decltype"})
        if source[first - 1] == "decltype":
            first = source.match(first) + 1
        open_ = source.find("<", first)
        if source.match_angle(open_) != end - 1:
            raise source.error(begin, "a kernel must be instantiated as decltype(f<...>)")
        path = "".join(source.words(first, open_))
        scope, colons, name = path.rpartition("::")
        n_arguments = len(source.split(open_ + 1, end - 1))
        kernel = next((k for k in self.kernels[name] if k.takes(n_arguments)), None)
        if kernel is None:
            raise source.error(begin, f"there is no kernel template `{path}` to instantiate")
        function = source.text(first, end)
        source.erase(declaration.start, declaration.end)
        self.register(end, host_name, kernel, scope + colons, function)

    def host_name(self, begin: int, end: int) -> str:
        """What `[[host_name("...")]]` says; empty without it."""
        source = self.source
        for first, last in source.attributes(begin, end):
            if source[first] == "host_name":
                strings = [t for t in source.tokens[first:last] if t.kind == "string"]
                return "".join(string.text[1:-1] for string in strings)
        return ""

    def register(
        self, after: int, host_name: str, kernel: Kernel, scope: str, function: str
    ) -> None:
        """Announces a function, if it is wanted."""
        self.host_names.append(host_name)
        if self.only is None or host_name in self.only:
            text = kernel.registration(next(self.identifiers), host_name, scope, function)
            self.source.insert_after(after, text)
