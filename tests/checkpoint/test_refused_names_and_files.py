"""Paths, names and files of a checkpoint that are none: refused by name, and without waiting."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_dsv4.checkpoint import convert
from mlx_dsv4.errors import ConfigError, FileFormatError, TokenizerError
from mlx_dsv4.gguf import GGUFFile
from released import Released, make_released
from test_refusals import INDEX, SHARD, refused


@pytest.fixture(scope="module")
def small() -> Released:
    return make_released(2, ratios=(0, 4), hash_layers=1, experts=2)


@pytest.fixture
def folder(small: Released, tmp_path: Path) -> Path:
    return small.write(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.clear(), "model must be an object; got nothing"),
        (lambda c: c.update(model=[]), "model must be an object; got list"),
        (lambda c: c["model"].update(vocab=[]), "model.vocab must be an object; got list"),
        (lambda c: c["model"]["vocab"].update(x=True), "id of 'x' must be an integer; got bool"),
        (lambda c: c["model"].pop("merges"), "model.merges must be an array; got nothing"),
        (lambda c: c["model"]["merges"].insert(1, "ab"), r"merges\[1\] must be two strings.*'ab'"),
        (lambda c: c["model"]["merges"].insert(0, ["a", 1]), r"merges\[0\] .* got \['a', 1\]"),
        (lambda c: c.update(added_tokens={}), "added_tokens must be an array; got dict"),
        (
            lambda c: c["added_tokens"].insert(2, "x"),
            r"added_tokens\[2\] must be an object; got str",
        ),
        (lambda c: c["added_tokens"][0].pop("id"), r"added_tokens\[0\].id must be an integer"),
        (
            lambda c: c["added_tokens"][1].update(content=7),
            r"\[1\].content must be a string; got int",
        ),
        (lambda c: c.update(normalizer="NFC"), "normalizer must be absent or empty; got 'NFC'"),
        (lambda c: c["model"].update(type="Unigram"), "model.type must be 'BPE'; got 'Unigram'"),
        (lambda c: c["model"].update(ignore_merges=True), "model.ignore_merges must be None"),
        (lambda c: c.update(normalizer={"type": "NFC"}), "normalizer must be absent or empty"),
        (lambda c: c["pre_tokenizer"]["pretokenizers"].pop(0), "pre_tokenizer must be that of"),
        (lambda c: c["model"]["merges"].append("é é"), r"merges\[\d+\] must be two ordinary"),
        (lambda c: c["model"]["vocab"].update(one=600), "ids must be 0 to 511.*; got 600"),
        (lambda c: c["model"]["vocab"].update(two=300), "id 300 must be one token"),
        (lambda c: c["added_tokens"].pop(0), "added_tokens must have <.begin.of.sentence.>"),
        (lambda c: c["added_tokens"][0].update(lstrip=True), "must match as it stands"),
        (lambda c: c["model"]["vocab"].pop("Ā"), "an ordinary token for each of the 256 bytes"),
    ],
)
def test_another_tokenizer_is_named(
    change: Callable[[dict[str, object]], object], message: str, folder: Path
):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    refused(folder, TokenizerError, rf"(?s)tokenizer\.json: .*{message}")


@pytest.mark.parametrize("kind", ["a directory", "a device, socket or pipe"])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", INDEX, SHARD, "model.safetensors"]
)
def test_what_is_no_file_is_named_and_not_waited_for(name: str, kind: str, folder: Path):
    path = folder / name
    path.unlink(missing_ok=True)
    if name == "model.safetensors":
        (folder / INDEX).unlink()
    (os.mkdir if kind == "a directory" else os.mkfifo)(path)
    expected = "a safetensors file" if name.endswith(".safetensors") else "a JSON file"
    refused(folder, FileFormatError, f"{path}: must be {expected}; got {kind}")


def test_a_link_to_nowhere_is_a_missing_file(folder: Path):
    (folder / SHARD).unlink()
    (folder / SHARD).symlink_to("nowhere")
    refused(folder, FileFormatError, f"its files must lie beside it; missing: {SHARD}")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"norm.weight": ""}}))
    refused(folder, FileFormatError, "norm.weight must be in a file beside it; got ''")


def test_a_name_must_be_text(folder: Path):
    message = r"the name of the model must be valid Unicode; got 'caf\\udce9'"
    refused(folder, ConfigError, message, name=os.fsdecode(b"caf\xe9"))


def test_a_folder_whose_name_is_no_text_names_the_model_as_far_as_it_is(
    small: Released, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = small.write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf"))
    convert(folder, out)
    with GGUFFile(out) as file:
        assert file.metadata["general.name"] == "caf\ufffd"
    monkeypatch.chdir(folder)
    convert(".", out)
    with GGUFFile(out) as file:
        assert file.metadata["general.name"] == "caf\ufffd"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(folder: Path, tmp_path: Path, there: bool):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "out.gguf", tmp_path / "link.gguf"
    if there:
        target.write_bytes(b"of somebody")
    link.symlink_to("disk/out.gguf")
    convert(folder, link)
    assert link.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["out.gguf"]
    with GGUFFile(target) as file:
        assert len(file.tensors) > 10


def test_links_to_one_another_are_refused(folder: Path, tmp_path: Path):
    ring = tmp_path / "ring"
    ring.symlink_to(ring)
    with pytest.raises(OSError, match="symbolic links") as caught:
        convert(folder, ring)
    assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, str(ring))
    with pytest.raises(OSError, match="symbolic links"):
        convert(ring, tmp_path / "out.gguf")
