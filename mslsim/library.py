"""A .metal file, compiled for the simulator."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from mslsim.cache import digest, folder, own_digest
from mslsim.compiler import MODES, Compiler, default_compiler
from mslsim.errors import ShaderError
from mslsim.kernel import Kernel
from mslsim.rewriter import MslSyntaxError, rewrite
from mslsim.runtime import Constant, KernelEntry, runtime

Constants = Mapping[int | str, int | float | bool]


class Library:
    """The kernels of one source, compiled in one mode.

    "fast" runs with guard pages and finds divergence and deadlocks, "check" also finds races, exact
    bounds and uninitialised reads, "cov" is "check" with line coverage.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        source: str | None = None,
        name: str = "source.metal",
        include: Iterable[str | Path] = (),
        defines: Mapping[str, object] | None = None,
        instantiate: Sequence[tuple[str, str]] = (),
        only: Collection[str] | None = None,
        mode: str = "fast",
        compiler: Compiler | None = None,
    ) -> None:
        """Compiles a file or a source text.

        `instantiate` adds instantiations of templates, as (host name, "function<arguments>");
        `only` limits the compiled kernels to these host names.
        """
        if mode not in MODES:
            raise ShaderError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
        if (path is None) == (source is None):
            raise ShaderError("give a path or a source")
        folders = [*map(Path, include)]
        if path is not None:
            path = Path(path)
            source, name = path.read_text(), str(path)
            folders.append(path.resolve().parent)
        assert source is not None
        for host_name, function in instantiate:
            source += instantiation(host_name, function)
        self.mode = mode
        self.compiler = compiler or default_compiler()
        self._only = None if only is None else sorted(only)
        options = [f"-I{folder}" for folder in folders]
        options += [f"-D{key}={value}" for key, value in (defines or {}).items()]
        text = self.compiler.preprocess(source, name, options)
        flags = self.compiler.flags(mode)
        key = digest(own_digest(), self.compiler, flags, text, self._only)
        self.shared_object = folder() / f"{Path(name).stem}-{mode}-{key}.so"
        self._facts = self.shared_object.with_suffix(".json")
        if not self.shared_object.exists():
            self._compile(text)
        facts = json.loads(self._facts.read_text())
        self.kernel_names: list[str] = facts["kernels"]
        self._opened: dict[str, int] = {}

    def _compile(self, text: str) -> None:
        try:
            rewritten = rewrite(text, only=self._only)
        except MslSyntaxError as error:
            raise ShaderError(str(error)) from error
        facts = {"kernels": sorted(rewritten.kernels)}
        # The shared object is written last: where it exists, the facts do.
        partial = self._facts.with_suffix(f".{id(self)}.partial")
        partial.write_text(json.dumps(facts))
        partial.rename(self._facts)
        self.compiler.shared_object(rewritten.text, self.mode, self.shared_object)

    def kernel(self, name: str, constants: Constants | None = None) -> Kernel:
        """A kernel by its host name, with function constants by index or name."""
        lib = runtime()
        handle = self._open(constants or {})
        entries: dict[str, KernelEntry] = {}
        for i in range(lib.msl_kernel_count(handle)):
            entry = lib.msl_kernel_at(handle, i).contents
            entries[entry.name.decode()] = entry
        if name not in entries:
            raise ShaderError(f"no kernel {name!r}; there are {', '.join(sorted(entries))}")
        declared = [lib.msl_constant_at(handle, i) for i in range(lib.msl_constant_count(handle))]
        unset = [(c.index, c.name.decode()) for c in declared if not c.defined]
        return Kernel(name, entries[name], self.shared_object, self.mode != "fast", unset)

    def _open(self, constants: Constants) -> int:
        """Loads a copy with these constants: they are fixed when the library is loaded."""
        key = repr(sorted((str(name), value) for name, value in constants.items()))
        if key not in self._opened:
            values = [
                Constant(
                    index=name if isinstance(name, int) else -1,
                    name=name.encode() if isinstance(name, str) else None,
                    integer=int(value) & (2**64 - 1),
                    real=float(value),
                )
                for name, value in constants.items()
            ]
            lib = runtime()
            path = str(self.shared_object).encode()
            handle = lib.msl_open(path, len(values), (Constant * len(values))(*values))
            if not handle:
                raise ShaderError(lib.msl_open_error().decode())
            self._opened[key] = handle
        return self._opened[key]


def instantiation(host_name: str, function: str) -> str:
    """The line of MSL that instantiates a kernel template under a host name."""
    return f'\ntemplate [[host_name("{host_name}")]] [[kernel]] decltype({function}) {function};\n'
