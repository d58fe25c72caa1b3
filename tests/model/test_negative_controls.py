"""Known mistakes of other engines, made on purpose: the comparison with transformers sees each.

A control replaces one function that the NumPy model calls. One that the comparison let pass would
show that the oracle, the weights or the prompt cannot tell right from wrong there.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from agreement import LOGIT_BOUND
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.tiny import random_weights, tiny_config
from mlx_dsv4.reference.model import forward
from small_cases import SMALL, make_tokens
from transformers_oracle import transformers_logits

pytestmark = pytest.mark.oracle

# Imported by name: in the package, `attention` is the function of that module.
attention_module, compressor_module, indexer_module, model_module = (
    import_module(f"mlx_dsv4.reference.{name}")
    for name in ("attention", "compressor", "indexer", "model")
)

# One 128-span closes, 50 spans of 4 do, of which 8 are selected; the window is full.
TOKENS = 200


@cache
def config() -> ModelConfig:
    return tiny_config(
        **SMALL,
        **{"heads": 4, "head_dim": 96, "ratios": (0, 4, 128), "top_k": 8, "hash_layers": 1},
        **{"yarn_original_context": 512, "yarn_factor": 4.0},
    )


@cache
def weights() -> dict[str, np.ndarray]:
    return random_weights(config(), seed=0)


@cache
def tokens() -> np.ndarray:
    return make_tokens(config(), TOKENS)


@cache
def expected() -> np.ndarray:
    return transformers_logits(config(), weights(), tokens())


def difference() -> float:
    """Largest difference of logits between the NumPy model, as it is now, and transformers."""
    ours = forward(config(), weights(), tokens(), numerics="plain", dtype="float32")
    return float(np.abs(ours - expected()).max())


def replace(function: str, mistake: Callable[..., Any], module: Any = model_module) -> Callable:
    """A control: ``mistake(real, *args, **kwargs)`` runs instead of ``module.function``."""
    real = getattr(module, function)

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return mistake(real, *args, **kwargs)

        monkeypatch.setattr(module, function, wrong)

    return apply


def forget_previous_span(append, value, gate, ape, norm, rotation, v, s, rows, **settings):
    """Every span starts from an empty state."""
    ratio = settings["ratio"]
    for span in range(rows.shape[0]):
        part, turn = slice(span * ratio, (span + 1) * ratio), rotation[span : span + 1]
        settings["start"] = span * ratio
        rows = append(value[part], gate[part], ape, norm, turn, v, s, rows, **settings)[2]
    return v, s, rows


def one_base(frequencies, rope_dim, base, **yarn):
    return frequencies(rope_dim, config().rope_base, **yarn)


def no_yarn(frequencies, rope_dim, base, **yarn):
    return frequencies(rope_dim, base)


def yarn_everywhere(frequencies, rope_dim, base, **yarn):
    return frequencies(rope_dim, base, factor=4.0, original_context=512)


def positions_are_span_numbers(table, positions, frequencies):
    """Tokens have positions 0, 1, 2, ...; only rows of spans are further apart."""
    return table(np.arange(len(positions)), frequencies)


def temperature(table, positions, frequencies):
    return table(positions, frequencies) * 1.277


def no_inverse_rotation(rotate, x, rotation, *, inverse=False):
    return x if inverse else rotate(x, rotation)


def sink_adds_own_row(attend, q, rows, kv, sinks, rotation, **settings):
    """The sink's share of the softmax goes to the query's own row."""
    right = attend(q, rows, kv, sinks, rotation, **settings)
    unshared = attend(q, rows, kv, np.full_like(sinks, -np.inf), rotation, **settings)
    size = (unshared**2).sum(-1, keepdims=True)
    share = 1 - (right * unshared).sum(-1, keepdims=True) / size
    own = attention_module.rotate_tail(rows[:, None], rotation, inverse=True)
    return right + share * own


def sinks_are_zero(attend, q, rows, kv, sinks, rotation, **settings):
    return attend(q, rows, kv, 0 * sinks, rotation, **settings)


def no_sinks(attend, q, rows, kv, sinks, rotation, **settings):
    return attend(q, rows, kv, np.full_like(sinks, -np.inf), rotation, **settings)


def window_lacks_a_row(attend, q, rows, kv, sinks, rotation, *, window, **settings):
    return attend(q, rows, kv[1:], sinks, rotation, window=window - 1, **settings)


def everything_is_selected(attend, q, rows, kv, sinks, rotation, *, selected, **settings):
    return attend(q, rows, kv, sinks, rotation, selected=None, **settings)


def visible_a_token_late(visible, pos, ratio):
    return visible(pos - 1, ratio)


def visible_a_token_early(visible, pos, ratio):
    return min(visible(pos + 1, ratio), TOKENS // ratio)


def indexer_without_relu(score, q, w, rows, *, start, ratio, scale):
    right = score(q, w, rows, start=start, ratio=ratio, scale=scale)
    signed = np.einsum("thd,rd,th->tr", q, rows, w) * scale
    return np.where(np.isneginf(right), -np.inf, signed)


def indexer_weights_are_magnitudes(score, q, w, rows, **settings):
    return score(q, np.abs(w), rows, **settings)


def rows_without_norm(norm, x, eps, weight=None):
    return x if weight is not None else norm(x, eps)


def shared_expert_unclamped(run, x, ids, scale, gate, up, down, *, clamp, **settings):
    clamp = np.inf if gate.shape[0] == 1 else clamp
    return run(x, ids, scale, gate, up, down, clamp=clamp, **settings)


def routed_experts_unclamped(run, x, ids, scale, gate, up, down, *, clamp, **settings):
    clamp = np.inf if gate.shape[0] > 1 else clamp
    return run(x, ids, scale, gate, up, down, clamp=clamp, **settings)


def twice_counts_once(run, x, ids, scale, gate, up, down, **settings):
    first = np.ones_like(scale)
    for j in range(1, ids.shape[1]):
        first[:, j] = (ids[:, :j] != ids[:, j : j + 1]).all(1)
    return run(x, ids, scale * first, gate, up, down, **settings)


def bias_weighs(route, logits, bias, *, k, scale):
    ids, _ = route(logits, bias, k=k, scale=scale)
    keys = np.take_along_axis(model_module.expert_scores(logits) + bias, ids.astype(int), 1)
    return ids, keys / keys.sum(1, keepdims=True) * scale


def comb_transposed(post, streams, y, into, comb):
    return post(streams, y, into, comb.transpose(0, 2, 1))


def one_sinkhorn_iteration(pre, *arrays, iterations, **settings):
    return pre(*arrays, iterations=1, **settings)


def late_and_early(mistake: Callable[..., Any]) -> list[Callable]:
    modules = (attention_module, indexer_module, model_module)
    return [replace("visible_rows", mistake, module) for module in modules]


CONTROLS = {
    "previous span lost": [replace("compressor_append", forget_previous_span)],
    "one RoPE base for all layers": [replace("inverse_frequencies", one_base)],
    "YaRN left out": [replace("inverse_frequencies", no_yarn)],
    "YaRN on every layer": [replace("inverse_frequencies", yarn_everywhere)],
    "rows rotated at their number": [replace("rotation_table", positions_are_span_numbers)],
    "attention temperature": [replace("rotation_table", temperature)],
    "output not rotated back": [replace("rotate_tail", no_inverse_rotation, attention_module)],
    "sink with a value": [replace("attention", sink_adds_own_row)],
    "sinks zero": [replace("attention", sinks_are_zero)],
    "no sinks": [replace("attention", no_sinks)],
    "window one row short": [replace("attention", window_lacks_a_row)],
    "every row selected": [replace("attention", everything_is_selected)],
    "rows visible a token late": late_and_early(visible_a_token_late),
    "rows visible a token early": late_and_early(visible_a_token_early),
    "indexer without relu": [replace("indexer_scores", indexer_without_relu)],
    "indexer weights positive": [replace("indexer_scores", indexer_weights_are_magnitudes)],
    "compressed rows not normed": [replace("rms_norm", rows_without_norm, compressor_module)],
    "shared expert unclamped": [replace("experts", shared_expert_unclamped)],
    "routed experts unclamped": [replace("experts", routed_experts_unclamped)],
    "expert named twice counts once": [replace("experts", twice_counts_once)],
    "router bias weighs": [replace("route_scored", bias_weighs)],
    "comb transposed": [replace("hyper_post", comb_transposed)],
    "one Sinkhorn iteration": [replace("hyper_pre", one_sinkhorn_iteration)],
}


def test_without_a_mistake_the_models_agree() -> None:
    assert difference() <= LOGIT_BOUND


@pytest.mark.parametrize("name", CONTROLS)
def test_a_mistake_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for apply in CONTROLS[name]:
        apply(monkeypatch)
    assert difference() > 10 * LOGIT_BOUND
