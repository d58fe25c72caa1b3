"""Which release a file was made from: by names, else by the draft layers it counts."""

from pathlib import Path

import pytest

from mlx_dsv4.errors import UnsupportedModelError
from mlx_dsv4.gguf.release import release_of

FILE = Path("model.gguf")


def metadata(**general: str) -> dict[str, object]:
    names = {f"general.{key}": value for key, value in general.items()}
    return {"general.architecture": "deepseek4"} | names


@pytest.mark.parametrize(
    ("keys", "path", "release"),
    [
        (metadata(name="DeepSeek-V4-Flash-0731"), FILE, "0731"),
        (metadata(basename="deepseek-v4-flash_0731"), FILE, "0731"),
        (metadata(name="DeepSeek V4 Flash Preview"), FILE, "preview"),
        (metadata(name="tuned"), Path("DeepSeek-V4-Flash-preview-Q4_K.gguf"), "preview"),
        (metadata(), Path("/models/0731/any.gguf"), None),  # a folder says nothing
        (metadata(name="run 107312"), FILE, None),
        (metadata(name="DeepSeek-V4-Flash"), FILE, None),
    ],
)
def test_names_tell(keys: dict[str, object], path: Path, release: str | None) -> None:
    assert release_of(keys, path) == release


@pytest.mark.parametrize(("n_ratios", "release"), [(43, None), (44, "preview"), (46, "0731")])
def test_draft_layers_tell_where_no_name_does(n_ratios: int, release: str | None) -> None:
    counts = {"deepseek4.block_count": 43, "deepseek4.attention.compress_ratios": [0] * n_ratios}
    assert release_of(metadata() | counts, FILE) == release
    assert release_of(metadata(name="V4 0731") | counts, FILE) == "0731"


def test_v41_is_refused_by_the_name_of_the_file() -> None:
    path = Path("DeepSeek-V4.1-Flash-Q4_K.gguf")
    with pytest.raises(UnsupportedModelError, match=r"the file's name is 'DeepSeek-V4\.1-Flash"):
        release_of(metadata(name="model"), path)
