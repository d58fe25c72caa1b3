"""What rows depend on besides the tokens."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from xxhash import xxh3_128

from mlx_dsv4.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Two caches may exchange rows if nothing here differs.

    Attributes:
        config: Numbers of the model, ratios among them.
        row_format: "bfloat16" or "float32".
        numerics: "official" or "plain"; empty for a cache without a model.
        arithmetic: Device whose kernels computed the rows, and the version of their sums.
        model: Digest of the weights.
        tokenizer: Digest of the vocabulary.
    """

    config: ModelConfig
    row_format: str
    numerics: str = ""
    arithmetic: str = ""
    model: str = ""
    tokenizer: str = ""

    def fields(self) -> dict[str, object]:
        """As JSON can hold it."""
        fields = asdict(self)
        config = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields["config"].items()
        }
        return fields | {"config": config}

    def digest(self) -> str:
        """A short name for all of it."""
        return xxh3_128(json.dumps(self.fields(), sort_keys=True).encode()).hexdigest()


def differences(
    expected: Mapping[str, object], found: Mapping[str, object], prefix: str = ""
) -> Iterator[str]:
    """``name must be ...; got ...`` of each field that differs, of those inside mappings too."""
    for name in [*expected, *(key for key in found if key not in expected)]:
        a, b = expected.get(name), found.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from differences(a, b, f"{prefix}{name}.")
        elif a != b or type(a) is not type(b) or (name in found) != (name in expected):
            yield f"{prefix}{name} must be {a!r}; got {b!r}"
