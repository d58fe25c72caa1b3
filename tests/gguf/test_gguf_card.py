"""The model card, of files that run and of files that do not."""

import pytest
from gguf_bytes import F32, U32, Gguf, scalar, string, tensor

from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.gguf import GGUFFile, model_card
from mlx_dsv4.gguf.card import cache_bytes
from mlx_dsv4.gguf.tiny import Formats, random_weights, tiny_config, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary


def card_of(path, file: Gguf):
    path.write_bytes(file.encode())
    with GGUFFile(path) as opened:
        return model_card(opened)


def test_cache_bytes_of_v4_flash():
    """Windows 5,636,096 and states 12,206,080; 6,880 bytes for each token of context."""
    assert cache_bytes(V4_FLASH) == (5_636_096 + 12_206_080, 6880)


@pytest.mark.parametrize(
    ("ratio", "fixed", "per_token"),
    [
        (0, 128 * 192 * 2, 0),
        (4, 128 * 192 * 2 + 2 * 4 * (8 * 384 + 8 * 256), (192 + 128) * 2 / 4),
        (128, 128 * 192 * 2 + 2 * 4 * 128 * 192, 192 * 2 / 128),
    ],
)
def test_cache_bytes_of_one_layer(ratio, fixed, per_token):
    config = tiny_config(ratios=(ratio,), hash_layers=0)
    assert cache_bytes(config) == (fixed, per_token)


def test_card_of_a_model(small_model, small_config):
    with GGUFFile(small_model) as file:
        card = model_card(file)
        infos = file.tensors.values()
        assert card.n_bytes == small_model.stat().st_size
        assert sum(t.n_bytes for t in card.formats.values()) == sum(i.n_bytes for i in infos)
        assert sum(t.n_tensors for t in card.formats.values()) == len(file.tensors)
    assert card.runs
    assert card.name == small_config.name
    assert card.architecture == "deepseek4"
    assert card.config is not None
    assert card.config.ratios == small_config.ratios
    assert card.config_error == ""
    assert (card.kv_fixed_bytes, card.kv_bytes_per_token) == cache_bytes(small_config)
    assert set(card.formats) == {"f32", "f16", "bf16", "q8_0", "mxfp4", "i32"}
    sizes = [total.n_bytes for total in card.formats.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert card.formats["mxfp4"].n_bytes * 32 == card.formats["mxfp4"].n_elements * 17
    assert 4.25 < card.bits_per_weight < 32
    assert card.unread_keys == ()


def test_card_of_another_architecture_says_why(tmp_path):
    keys = [
        ("general.architecture", string("llama")),
        ("llama.feed_forward_length", scalar(U32, 2)),
    ]
    card = card_of(tmp_path / "other.gguf", Gguf(keys, [tensor("t", [8], 0, 0)], bytes(32)))
    assert not card.runs
    assert card.config is None
    assert "must be 'deepseek4'" in card.config_error
    assert card.name == "other"
    assert card.formats["f32"].n_bytes == 32
    assert card.unread_keys == ("llama.feed_forward_length",)


def test_card_of_an_empty_file_says_what_is_missing(tmp_path):
    card = card_of(tmp_path / "empty.gguf", Gguf())
    assert "general.architecture must be a string" in card.config_error
    assert card.tensors is None
    assert (card.kv_fixed_bytes, card.bits_per_weight) == (0, 0.0)


def test_card_lists_what_keeps_a_file_from_running(small_model, tmp_path):
    """One tensor misspelt, one of an unknown type, one extra key."""
    raw = small_model.read_bytes()
    raw = raw.replace(b"output_norm.weight", b"output_nrom.weight", 1)
    raw = raw.replace(b"deepseek4.hash_layer_count", b"deepseek4.hash_layer_cuont", 1)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    with GGUFFile(path) as file:
        card = model_card(file)
    assert "deepseek4.hash_layer_count must be an integer; got no such key" in card.config_error
    assert card.unread_keys == ("deepseek4.hash_layer_cuont",)

    raw = raw.replace(b"hash_layer_cuont", b"hash_layer_count", 1)
    at = raw.index(b"output.weight") + len(b"output.weight") + 4 + 2 * 8
    path.write_bytes(raw[:at] + (77).to_bytes(4, "little") + raw[at + 4 :])
    with GGUFFile(path) as file:
        card = model_card(file)
    assert not card.runs
    assert card.config is not None
    assert card.tensors is not None
    assert card.tensors.missing == ("output_norm.weight",)
    assert card.tensors.unmatched == ("output_nrom.weight",)
    assert list(card.tensors.unsupported) == ["output.weight"]
    assert "got type 77" in card.tensors.unsupported["output.weight"]
    assert card.formats["type 77"].n_tensors == 1


@pytest.mark.parametrize("change", ["missing", "cut"])
def test_the_one_bad_tensor_of_a_pruned_layer_is_named(change, tmp_path):
    path, config = tmp_path / "pruned.gguf", tiny_config(ratios=(0, 0), experts=(8, 5))
    weights = random_weights(config, 0)
    name = "blk.1.ffn_gate_exps.weight"
    write_model(path, config, weights, Formats(), make_vocabulary(config.vocab))
    raw = path.read_bytes()
    if change == "missing":
        raw = raw.replace(name.encode(), b"blk.1.ffn_gate_exqs.weight")
    else:
        at = raw.index(name.encode()) + len(name) + 4 + 2 * 8
        raw = raw[:at] + (3).to_bytes(8, "little") + raw[at + 8 :]
    path.write_bytes(raw)
    with GGUFFile(path) as file:
        report = model_card(file).tensors
    assert report is not None
    if change == "missing":
        assert (report.missing, report.wrong) == ((name,), {})
    else:
        assert report.missing == ()
        assert report.wrong == {name: "must be [5, 128, 256]; got [3, 128, 256]"}


def test_a_card_does_not_need_sound_names(tmp_path):
    keys = [("general.architecture", scalar(F32, 1)), ("general.name", scalar(U32, 5))]
    card = card_of(tmp_path / "odd.gguf", Gguf(keys))
    assert (card.name, card.architecture) == ("5", "1.0")
