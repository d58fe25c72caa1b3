"""Keys of a file with the types that they must have."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_dsv4.errors import ConfigError


def describe(value: object) -> str:
    """A value as errors show it."""
    if value is None:
        return "no such key"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"an array of {len(value)}"
    return f"{value!r} ({type(value).__name__})"


class TypedKeys:
    """Typed access to the keys of one file, with the full key in every error.

    Args:
        metadata: Key to value.
        prefix: What all keys begin with.
        suffixes: Field of the model's configuration to its key without the prefix.
    """

    def __init__(
        self, metadata: Mapping[str, object], prefix: str, suffixes: Mapping[str, str]
    ) -> None:
        self.metadata = metadata
        self.prefix = prefix
        self.suffixes = dict(suffixes)

    def name(self, field: str, layer: int | None = None) -> str:
        """The full key of a field, or of its value for a layer where the file has one for each."""
        key = self.prefix + self.suffixes[field]
        per_layer = layer is not None and isinstance(self.metadata.get(key), Sequence)
        return f"{key}[{layer}]" if per_layer else key

    def get(self, suffix: str) -> object:
        return self.metadata.get(self.prefix + suffix)

    def reject(self, suffix: str, expected: str) -> ConfigError:
        return ConfigError(
            f"{self.prefix}{suffix} must be {expected}; got {describe(self.get(suffix))}"
        )

    def integer(self, suffix: str) -> int:
        value = self.get(suffix)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.reject(suffix, "an integer")
        return value

    def number(self, suffix: str) -> float:
        value = self.get(suffix)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.reject(suffix, "a number")
        return float(value)

    def per_layer(self, suffix: str, layers: int, kind: type) -> tuple[Any, ...]:
        """The first ``layers`` entries of an array; a single number stands for all layers."""
        value = self.get(suffix)
        accepted = int if kind is int else int | float
        if isinstance(value, accepted) and not isinstance(value, bool) and kind is float:
            return (float(value),) * layers
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) < layers:
            raise self.reject(suffix, f"an array of at least {layers} numbers, one per layer")
        first = value[:layers]
        wrong = [x for x in first if isinstance(x, bool) or not isinstance(x, accepted)]
        if wrong:
            raise ConfigError(
                f"{self.prefix}{suffix} must hold {kind.__name__} values; got {describe(wrong[0])}"
            )
        return tuple(kind(x) for x in first)

    def expect(self, suffix: str, wanted: object, *, optional: bool = False) -> None:
        value = self.get(suffix)
        if optional and value is None:
            return
        same_kind = isinstance(value, bool) == isinstance(wanted, bool)
        if value != wanted or not same_kind:
            raise self.reject(suffix, f"{'absent or ' if optional else ''}{wanted!r}")
