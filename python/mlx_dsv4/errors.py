"""What can go wrong, as types: each message names the thing, what was expected and what came."""

from collections.abc import Sequence


class Dsv4Error(Exception):
    """Root of every error this package raises on purpose."""


class FileFormatError(Dsv4Error, ValueError):
    """The bytes of a file are not what its format says they must be."""


class DamagedFileError(FileFormatError):
    """A file has changed since it was written, or is cut short."""


class UnsupportedModelError(Dsv4Error, ValueError):
    """A well-formed file of a model, checkpoint or block format that is not run here."""


class ConfigError(Dsv4Error, ValueError):
    """A number of the model, or an argument of loading, is missing, of the wrong type, or out of
    its range."""


class TensorError(Dsv4Error, ValueError):
    """The tensors of a file are not those of its configuration.

    Args:
        message: The whole report, ready to print.
        missing: Names the configuration needs and the file lacks.
        wrong: Names present with another shape or type than needed.
        unmatched: Names present that the model has no place for.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        wrong: Sequence[str] = (),
        unmatched: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.wrong = tuple(wrong)
        self.unmatched = tuple(unmatched)


class TokenizerError(Dsv4Error, ValueError):
    """The vocabulary of a file does not make a tokenizer."""


class PromptError(Dsv4Error, ValueError):
    """A prompt is empty, longer than the context, or holds an id outside the vocabulary."""


class ParamsError(Dsv4Error, ValueError):
    """What a generation was asked for is out of its range, or leaves no token to draw."""


class ChatError(Dsv4Error, ValueError):
    """Messages or tools that the chat encoding cannot render; says where."""


class SlotError(Dsv4Error, RuntimeError):
    """A session or request cannot get a slot: all are held, or too many requests are waiting."""


class ThreadError(Dsv4Error, RuntimeError):
    """An engine was used by its own thread, or in a forked process: nobody would answer."""


class PlanError(Dsv4Error, ValueError):
    """No cache can be planned for these numbers."""


class CacheStateError(Dsv4Error, RuntimeError):
    """A cache is poisoned, or was asked for a step that does not start at its cursor."""


class SnapshotError(Dsv4Error, ValueError):
    """A snapshot or a saved cache is of another model, plan or row format, or its rows are gone."""


class BudgetError(Dsv4Error, ValueError):
    """A saved cache is larger than all that its store may hold."""


class LogitsError(Dsv4Error, ArithmeticError):
    """Logits hold NaN: weights are damaged, or a token was outside the vocabulary."""


class DeviceError(Dsv4Error, RuntimeError):
    """The device that was asked for runs no kernels in this build or on this machine."""


class ClosedError(Dsv4Error, ValueError):
    """A model was asked for something after it had been closed."""


class AllocationError(Dsv4Error, MemoryError):
    """The planned buffers do not fit in the memory of this machine."""
