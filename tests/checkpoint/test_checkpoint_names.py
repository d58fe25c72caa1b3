"""Names in a checkpoint: those of DeepSeek's release, each used once."""

import json
from collections import Counter

from mlx_dsv4.checkpoint.names import is_draft, source_names
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.gguf import expected_tensors
from released import TENSORS


def test_every_tensor_of_v4_flash_has_its_published_source():
    published = {
        row["name"].replace("*", str(layer)): row["source"].replace("*", str(layer))
        for row in json.loads(TENSORS.read_text())
        for layer in row["layers"] or [0]
    }
    found = {name: source_names(name, spec) for name, spec in expected_tensors(V4_FLASH).items()}
    assert found.keys() == published.keys()
    for name, sources in found.items():
        count = 256 if "#" in published[name] else 1
        assert sources == tuple(published[name].replace("#", str(i)) for i in range(count))
    # 43 layers of 256 experts of three matrices, and what is not an expert.
    uses = Counter(source for sources in found.values() for source in sources)
    assert len(uses) == 43 * 256 * 3 + 1328 - 43 * 3
    assert set(uses.values()) == {1}


def test_draft_parts_are_told_from_the_model():
    drafts = ("mtp.0.e_proj.weight", "layers.43.attn.wq_a.weight", "dspark.x")
    assert all(is_draft(name, V4_FLASH) for name in drafts)
    model = ("layers.42.attn.wq_a.weight", "norm.weight", "layers.x", "head.weight")
    assert not any(is_draft(name, V4_FLASH) for name in model)
