"""What the thread of the model does for callers that wait for it, or have been interrupted."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from mlx_dsv4.engine.slot import Slot

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Errand:
    """Something to do with a slot once nothing runs in it."""

    slot: Slot
    work: Callable[[], None]
    cancel: Callable[[BaseException], None]


def settle(future: "Future[T]", function: Callable[[], T]) -> None:
    """Run a function for whoever waits for it, unless nobody does."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def give_up(future: "Future[None]", error: BaseException) -> None:
    """Tell whoever waits for a function that it does not run."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def result_of(future: "Future[T]") -> T:
    """What becomes of a function; it does not begin once its caller has been interrupted."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
