"""The C++ compiler behind the simulator: clang from the system, or from the ziglang wheel."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mslsim.cache import PACKAGE, digest, folder, own_digest, publish
from mslsim.errors import ShaderError

INCLUDE = PACKAGE / "include"
CLANGS = ("clang++-19", "clang++-20", "clang++-21", "clang++-22")
MESSAGE_CHARACTERS = 20000
# Snippets and columns would be those of the rewritten text.
PLAIN_MESSAGES = ("-fno-caret-diagnostics", "-fno-show-column")
DEFINES = (
    "-D__METAL__=1",
    "-D__METAL_VERSION__=310",
    "-D__HAVE_BFLOAT__=1",
    "-D__METAL_MACOS__=1",
)
COMMON = (
    *("-std=gnu++17", "-fPIC", "-g1", "-w", "-Wno-c++11-narrowing"),
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=off", "-Xclang", "-ffloat16-excess-precision=none"),
    *PLAIN_MESSAGES,
    *("-nostdinc", "-nostdinc++", "-fno-omit-frame-pointer", "-fconvergent-functions"),
    # The return address of a barrier or SIMD-group call names it: no pass may duplicate the call,
    # and x86 code generation does not know that it is convergent.
    *("-mllvm", "-disable-tail-duplicate", "-mllvm", "-disable-early-taildup"),
    *("-mllvm", "-tail-dup-placement=0"),
)
CHECK = (
    *("-O1", "-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-distinguish-volatile=1"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
    "-fsanitize=bounds,alignment,shift-exponent,integer-divide-by-zero,float-cast-overflow",
    # An array of one element has one where it ends a struct, too.
    "-fstrict-flex-arrays=3",
    *("-fsanitize-recover=all", "-ftrivial-auto-var-init=pattern"),
)
MODES = {
    # More optimization costs more time than it saves at the shapes of tests.
    "fast": ("-O1", "-fno-sanitize=undefined"),  # zig turns the sanitizer on by itself
    "check": CHECK,
    "cov": (*CHECK, "-fsanitize-coverage=trace-pc-guard,pc-table"),
}


@dataclass(frozen=True)
class Compiler:
    """One installed compiler."""

    command: tuple[str, ...]
    version: str

    @property
    def is_zig(self) -> bool:
        """Whether it is zig's driver, which has its own spelling of some flags."""
        return "ziglang" in self.command

    def flags(self, mode: str) -> tuple[str, ...]:
        """The flags that compile rewritten shaders in a mode."""
        machine = "-mcpu=x86_64_v3" if self.is_zig else "-march=x86-64-v3"
        return (*COMMON, machine, *MODES[mode])

    def run(self, *arguments: str, text: str | None = None) -> str:
        """Runs the compiler; its standard output."""
        done = subprocess.run(
            [*self.command, *arguments], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ShaderError(first_errors(done.stderr))
        return done.stdout

    def preprocess(self, source: str, name: str, options: list[str]) -> str:
        """The source with its includes and macros expanded; line markers name the origin."""
        return self.run(
            *("-E", "-x", "c++", "-std=gnu++17", "-nostdinc", "-nostdinc++", "-undef"),
            *PLAIN_MESSAGES,
            *DEFINES,
            f"-I{INCLUDE}",
            *options,
            "-",
            text=f'# 1 "{name}"\n{source}',
        )

    def precompiled_header(self, mode: str) -> Path:
        """The library of MSL, compiled once per mode."""
        # The header's path is recorded in the file.
        key = digest(own_digest("include/*"), INCLUDE, self, self.flags(mode))
        header = folder() / f"msl-{mode}-{key}.pch"
        if not header.exists():
            with publish(header) as partial:
                self.run(
                    *self.flags(mode),
                    *("-Xclang", "-fno-pch-timestamp", "-x", "c++-header"),
                    *(str(INCLUDE / "msl_library.h"), "-o", str(partial)),
                )
        return header

    def shared_object(self, rewritten: str, mode: str, target: Path) -> None:
        """Compiles rewritten MSL."""
        with publish(target) as partial:
            unit, unlinked = partial.with_suffix(".cpp"), partial.with_suffix(".o")
            try:
                unit.write_text(rewritten)
                self.run(
                    *self.flags(mode),
                    *("-include-pch", str(self.precompiled_header(mode))),
                    *("-c", str(unit), "-o", str(unlinked)),
                )
                link(unlinked, partial)
            finally:
                unit.unlink(missing_ok=True)
                unlinked.unlink(missing_ok=True)


def link(unlinked: Path, target: Path) -> None:
    """Links one object into a shared object that the runtime library completes.

    The compilers' drivers would take as long as a small shader, and zig's would add its own
    thread sanitizer.
    """
    subprocess.run(["ld", "-shared", "-o", target, unlinked, "-lm"], check=True)


def first_errors(messages: str) -> str:
    """A compiler's messages from the first error on."""
    lines = messages[:MESSAGE_CHARACTERS].splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line), 0)
    return "\n".join(lines[first:])


@cache
def installed_compilers() -> tuple[Compiler, ...]:
    """Every usable compiler of this machine, best first."""
    commands: list[tuple[str, ...]] = [(name,) for name in CLANGS if shutil.which(name)]
    if importlib.util.find_spec("ziglang") is not None:
        commands.append((sys.executable, "-m", "ziglang", "c++"))
    return tuple(compiler(command) for command in commands)


@cache
def compiler(command: tuple[str, ...]) -> Compiler:
    """The compiler that a command line starts."""
    out = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    return Compiler(command, out.stdout.splitlines()[0])


def default_compiler() -> Compiler:
    """The compiler that MSLSIM_CXX names, or the best that is installed."""
    if named := os.environ.get("MSLSIM_CXX"):
        return compiler(tuple(named.split()))
    if not installed_compilers():
        raise ShaderError(
            "no compiler for shaders: install clang 19 or later, or `pip install ziglang`"
        )
    return installed_compilers()[0]
