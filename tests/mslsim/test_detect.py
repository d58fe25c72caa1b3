"""Each kernel of broken.metal is reported; repaired, it is not."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mslsim import Library, ShaderError

pytestmark = pytest.mark.simulated

SHADER = Path(__file__).parent / "broken.metal"
ORDERS = ("forward", "reverse", "random")


@dataclass(frozen=True)
class Mistake:
    """A kernel, how it is launched, and the kinds that its report may hold.

    Attributes:
        kernel: Its name.
        sizes: Elements of its buffers.
        check: Kinds found in check mode.
        fast: Kinds found in fast mode; empty where only check mode can tell.
        threads: Of the grid, one threadgroup unless `launch` says otherwise.
        launch: What differs from the usual dispatch.
        dtype: Of the buffers.
    """

    kernel: str
    sizes: tuple[int, ...]
    check: set[str]
    fast: set[str] = field(default_factory=set)
    threads: int = 64
    launch: dict[str, Any] = field(default_factory=dict)
    dtype: type = np.float32

    def __str__(self) -> str:
        return self.kernel

    def dispatch(self, library: Library, *, repaired: bool, **options: Any) -> list[Any]:
        """Runs the kernel; its buffers."""
        buffers = [np.full(size, 7, self.dtype) for size in self.sizes]
        launch = {"threads": self.threads, "threadgroup": self.threads, **self.launch, **options}
        library.kernel(self.kernel, {0: repaired, 1: 0}).dispatch(buffers, **launch)
        return buffers


MISTAKES = [
    Mistake("no_barrier", (128,), {"race", "uninitialised"}, threads=128),
    Mistake("no_memory_in_simdgroup_barrier", (32,), {"race"}, threads=32),
    Mistake("wrong_barrier_flag", (128,), {"race"}, threads=128),
    Mistake("wrong_barrier_flag_for_device", (256,), {"race"}, threads=128),
    Mistake("no_barrier_before_reuse", (128,), {"race"}, threads=128),
    Mistake(
        "threadgroups_write_one_place", (32, 1), {"race"}, threads=96, launch={"threadgroup": 32}
    ),
    Mistake("two_barriers", (64,), {"barrier-divergence"}, {"barrier-divergence"}),
    Mistake("barrier_after_return", (64,), {"barrier-exited"}, {"barrier-exited"}),
    Mistake("divergent_simd_sum", (32,), {"divergence"}, {"divergence"}, threads=32),
    Mistake("shuffle_from_outside", (32,), {"simd-shuffle"}, {"simd-shuffle"}, threads=32),
    Mistake("read_past_end", (64, 64), {"bounds", "fault"}, {"fault"}),
    Mistake("read_far_away", (64, 64), {"bounds", "fault"}, {"fault"}),
    Mistake("write_before_start", (64,), {"bounds", "fault"}),
    Mistake("outside_threadgroup_variable", (64,), {"bounds"}),
    Mistake("outside_local_array", (64,), {"ub", "bounds"}),
    Mistake("outside_array_of_struct", (64,), {"ub"}),
    Mistake("unwritten_threadgroup_memory", (64,), {"uninitialised"}),
    Mistake("unwritten_output", (64,), {"uninitialised"}, launch={"fresh": [0]}),
    Mistake("misaligned_vector", (300, 256), {"ub"}),
    Mistake("write_to_input", (64, 64), {"fault"}, {"fault"}),
    Mistake("endless", (32,), {"timeout"}, {"timeout"}, threads=32, launch={"timeout_s": 0.3}),
    Mistake("division_by_zero", (64,), {"ub", "fault"}, dtype=np.int32),
    Mistake("shift_too_far", (64,), {"ub"}, dtype=np.int32),
]


@pytest.fixture(scope="module")
def fast() -> Library:
    return Library(SHADER)


@pytest.fixture(scope="module")
def check() -> Library:
    return Library(SHADER, mode="check")


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_check_mode_reports(check: Library, mistake: Mistake) -> None:
    with pytest.raises(ShaderError, match=r"\[") as raised:
        mistake.dispatch(check, repaired=False)
    assert raised.value.report is not None
    kinds = raised.value.report.kinds()
    assert kinds & mistake.check
    assert kinds <= mistake.check, str(raised.value)


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m.fast], ids=str)
def test_fast_mode_reports(fast: Library, mistake: Mistake) -> None:
    with pytest.raises(ShaderError) as raised:
        mistake.dispatch(fast, repaired=False)
    assert raised.value.report is not None
    assert raised.value.report.kinds() == mistake.fast


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_repaired_kernels_are_clean(fast: Library, check: Library, mistake: Mistake) -> None:
    for order in ORDERS:
        mistake.dispatch(check, repaired=True, order=order, seed=1)
    mistake.dispatch(fast, repaired=True)


def test_a_report_names_both_lines_of_a_race(check: Library) -> None:
    lines = SHADER.read_text().splitlines()
    write = 1 + next(i for i, line in enumerate(lines) if "slots[t] = t;" in line)
    read = 1 + next(i for i, line in enumerate(lines) if "slots[(t + 33)" in line)
    with pytest.raises(ShaderError) as raised:
        MISTAKES[0].dispatch(check, repaired=False)
    assert raised.value.report is not None
    race = next(f for f in raised.value.report.findings if f.kind == "race")
    assert {race.at, race.other} == {(f"broken.metal:{write}",), (f"broken.metal:{read}",)}


def test_fast_mode_shows_unwritten_memory_as_nan(fast: Library) -> None:
    mistake = next(m for m in MISTAKES if m.kernel == "unwritten_threadgroup_memory")
    (out,) = mistake.dispatch(fast, repaired=False)
    assert np.isnan(out).sum() == 4


def test_check_mode_shows_unwritten_locals_as_nan(check: Library) -> None:
    out = np.zeros(32, np.float32)
    kernel = check.kernel("unwritten_local", {0: True, 1: 0})
    kernel.dispatch([out], threads=32, threadgroup=32)
    assert np.isnan(out).all()


def test_orders_give_different_results_where_a_barrier_is_missing(fast: Library) -> None:
    outs = [MISTAKES[0].dispatch(fast, repaired=False, order=order)[0] for order in ORDERS]
    assert len({out.tobytes() for out in outs}) > 1


def test_threadgroup_memory_is_limited(fast: Library) -> None:
    kernel = fast.kernel("too_much_threadgroup_memory", {0: True, 1: 0})
    out = np.zeros(32, np.float32)
    with pytest.raises(ShaderError, match="threadgroup-memory"):
        kernel.dispatch([out], threads=32, threadgroup=32, threadgroup_bytes={0: 20000})
    with pytest.raises(ShaderError, match=r"threadgroup memory 0 \(given\) has no length"):
        kernel.dispatch([out], threads=32, threadgroup=32)


def test_a_launch_must_fit_the_kernel(fast: Library) -> None:
    kernel = fast.kernel("read_past_end", {0: True, 1: 0})
    four = np.zeros(4, np.float32)
    with pytest.raises(ShaderError, match=r"buffers not bound: 1 \(out\)"):
        kernel.dispatch([four], threads=4, threadgroup=4)
    with pytest.raises(ShaderError, match=r"there are no buffers \[2\]"):
        kernel.dispatch([four, four, four], threads=4, threadgroup=4)
    with pytest.raises(ShaderError, match="2048 threads per threadgroup; the limit is 1024"):
        kernel.dispatch([four, four], threads=4096, threadgroup=2048)
    assert fast.kernel("read_past_end").unset_constants == [(0, "repaired"), (1, "offset")]
