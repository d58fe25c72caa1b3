"""Which release of DeepSeek-V4-Flash a file was made from."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from mlx_dsv4.config import KEYS, NAME_KEYS, key_prefix, refuse_other_models

Release = Literal["preview", "0731"]

# Draft layers behind the model's own in ``attention.compress_ratios``.
_DRAFT_LAYERS: dict[int, Release] = {1: "preview", 3: "0731"}
_NAMED: dict[Release, re.Pattern[str]] = {
    "0731": re.compile(r"(?<!\d)0731(?!\d)"),
    "preview": re.compile(r"(?i)preview"),
}


def release_of(metadata: Mapping[str, object], path: Path) -> Release | None:
    """The release by the names in a file and its own, else by the draft layers that it counts.

    Args:
        metadata: Of the file.
        path: Of the file.

    Returns:
        None where nothing tells.

    Raises:
        UnsupportedModelError: a name says that it is DeepSeek-V4.1.
    """
    texts = {key: metadata.get(key) for key in NAME_KEYS} | {"the file's name": path.name}
    refuse_other_models(texts)
    for release, pattern in _NAMED.items():
        if any(isinstance(text, str) and pattern.search(text) for text in texts.values()):
            return release
    prefix = key_prefix(metadata)
    ratios, layers = (metadata.get(prefix + KEYS[field]) for field in ("ratios", "layers"))
    if isinstance(ratios, Sequence) and isinstance(layers, int):
        return _DRAFT_LAYERS.get(len(ratios) - layers)
    return None
