"""Kernels: what their parameters are bound to, and how the simulator learns of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations

from mslsim.rewriter.declarations import Declaration
from mslsim.rewriter.source import Source

MAX_BUFFERS = 31
BUILTINS = {
    *("thread_position_in_grid", "thread_position_in_threadgroup"),
    *("threadgroup_position_in_grid", "threads_per_grid", "threadgroups_per_grid"),
    *("threads_per_threadgroup", "dispatch_threads_per_threadgroup"),
    *("thread_index_in_threadgroup", "thread_index_in_simdgroup"),
    *("simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup", "threads_per_simdgroup"),
    *("thread_index_in_quadgroup", "quadgroup_index_in_threadgroup"),
    *("quadgroups_per_threadgroup", "grid_origin"),
}
ALIASES = {"thread_execution_width": "threads_per_simdgroup"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        kind: "buffer", "threadgroup", or the name of a built-in.
        index: A constant expression of C++, often an enumerator; empty for a built-in.
        name: As in the source.
        type: As in the source.
        function_constant: The constant that decides whether it is there; empty for none.
        readonly: Whether the kernel cannot write it.
    """

    kind: str
    index: str
    name: str
    type: str
    function_constant: str
    readonly: bool

    @property
    def row(self) -> str:
        """Its line of the binding table: an msl_param."""
        gate = f"&{self.function_constant}" if self.function_constant else "nullptr"
        fields = (
            f"MSL_{self.kind.upper()}, int({self.index or -1})",
            f'"{self.name}", "{self.type}"',
            f"{gate}, {'true' if self.readonly else 'false'}",
        )
        return f"{{{', '.join(fields)}}}"


@dataclass(frozen=True)
class Kernel:
    """A kernel function, or a template of such functions.

    Attributes:
        name: As in the source.
        parameters: In order.
        table: Name of the binding table.
        template_arguments: How many it takes, at least and at most; None if it is no template.
        max_threads: Constant expression for the threads of a threadgroup; "0" where not limited, or
            where the limit depends on template arguments.
        where: file:line.
    """

    name: str
    parameters: list[Parameter]
    table: str
    template_arguments: tuple[int, int] | None
    max_threads: str
    where: str

    def takes(self, n_arguments: int) -> bool:
        """Whether a list of template arguments fits."""
        least, most = self.template_arguments or (0, 0)
        return least <= n_arguments <= most

    def binding_table(self) -> str:
        """The definition of the table that a launch reads."""
        rows = ", ".join(parameter.row for parameter in self.parameters)
        return f" static constexpr ::msl_param {self.table}[] = {{{rows}}};"

    def index_checks(self) -> str:
        """What the C++ compiler must find true of the indices, which it alone can evaluate."""
        buffers = [parameter for parameter in self.parameters if parameter.kind == "buffer"]
        checks = [
            f" static_assert(int({p.index}) >= 0 && int({p.index}) < {MAX_BUFFERS}, "
            f'"buffer index of `{p.name}` of kernel `{self.name}` must be 0 to {MAX_BUFFERS - 1}");'
            for p in buffers
        ]
        # Function constants may choose between buffers of one index.
        always = [parameter for parameter in buffers if not parameter.function_constant]
        checks += [
            f" static_assert(int({p.index}) != int({q.index}), "
            f'"`{p.name}` and `{q.name}` of kernel `{self.name}` have the same buffer index");'
            for p, q in combinations(always, 2)
        ]
        return "".join(checks)

    def registration(self, identifier: int, host_name: str, scope: str, function: str) -> str:
        """Announces one function under its host name when the library is loaded."""
        symbol = re.sub(r"\W", "_", host_name)
        return (
            f' MSL_REGISTER({identifier}, {symbol}, "{host_name}", {scope}{self.table}, '
            f'{self.max_threads}, "{self.where}", &{function})'
        )


def is_kernel(source: Source, declaration: Declaration) -> bool:
    """Whether a function is a kernel, in either spelling."""
    assert declaration.parameters is not None
    head = (declaration.head, declaration.parameters)
    words = [source[i] for i in source.without_attributes(*head)]
    attributes = [source[begin] for begin, _ in source.attributes(*head)]
    return "kernel" in words or "kernel" in attributes


def read_kernel(source: Source, declaration: Declaration, overload: int) -> Kernel:
    """The kernel that a declaration defines, the `overload`-th of its name."""
    assert declaration.parameters is not None
    open_, name = declaration.parameters, source[declaration.parameters - 1]
    max_threads = "0"
    for begin, end in source.attributes(declaration.head, open_):
        if source[begin] == "max_total_threads_per_threadgroup":
            max_threads = source.text(begin + 2, end - 1)
    template = declaration.template
    if template and uses(source, template, max_threads):
        max_threads = "0"
    return Kernel(
        name=name,
        parameters=read_parameters(source, open_),
        table=f"__msl_p_{name}" + (f"_{overload}" if overload else ""),
        template_arguments=None if template is None else arity(source, template),
        max_threads=max_threads,
        where=source.where(open_ - 1),
    )


def arity(source: Source, template: list[tuple[int, int]]) -> tuple[int, int]:
    """The least and the most arguments of template parameters."""
    required = sum("=" not in source.words(*parameter) for parameter in template)
    return required, len(template)


def uses(source: Source, template: list[tuple[int, int]], expression: str) -> bool:
    """Whether an expression names a parameter of a template."""
    words = {word for begin, end in template for word in source.words(begin, end)}
    return not words.isdisjoint(re.findall(r"[A-Za-z_]\w*", expression))


def read_parameters(source: Source, open_: int) -> list[Parameter]:
    """The parameters in a kernel's list."""
    return [
        read_parameter(source, begin, end)
        for begin, end in source.split(open_ + 1, source.match(open_))
    ]


def read_parameter(source: Source, begin: int, end: int) -> Parameter:
    """One parameter: its last word outside of `[[...]]` is the name."""
    declared = [source[i] for i in source.without_attributes(begin, end)]
    kind, index, gate = "", "", ""
    for first, last in source.attributes(begin, end):
        attribute = ALIASES.get(source[first], source[first])
        if attribute in {"buffer", "threadgroup"}:
            kind, index = attribute, source.text(first + 2, last - 1)
        elif attribute == "function_constant":
            gate = source.text(first + 2, last - 1)
        elif attribute in BUILTINS:
            kind = attribute
    if not kind:
        spelled = " ".join(source.words(begin, end))
        raise source.error(begin, f"kernel parameter `{spelled}` needs [[buffer(index)]]")
    return Parameter(
        kind=kind,
        index=index,
        name=declared[-1],
        type=" ".join(declared[:-1]),
        function_constant=gate,
        readonly="constant" in declared or {"const", "device"} <= set(declared),
    )
