"""Everything that training reads, in one folder: numbers, vocabulary, tokens."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.tiny import tiny_config
from mlx_dsv4.gguf.vocabulary import Vocabulary, make_vocabulary
from mlx_dsv4.text import Tokenizer
from mlx_dsv4.text.chat import END_THINK, ChatEncoding
from mlx_dsv4.text.tokenizer import pre_tokenizer
from tools.train_demo.conversations import exchanges
from tools.train_demo.corpus import Source
from tools.transformers_model import translate_config

VOCAB = 4096
# Of the sampled conversations, every third thinks first.
_THINKS = 3


def demo_config() -> ModelConfig:
    """The numbers of the demo model: every kind of layer, and rows to choose from above 1K."""
    layers = 6
    return tiny_config(
        name="DeepSeek-V4 demo (Python)",
        vocab=VOCAB,
        context=8192,
        indexer_heads=8,
        top_k=64,
        experts=16,
        experts_used=4,
        expert_hidden=96,
        clamp=(10.0,) * layers,
        clamp_shared=(10.0,) * layers,
    )


def demo_vocabulary(sources: list[Source], size: int) -> Vocabulary:
    """A byte-level BPE of the sources that are trained on, cut as DeepSeek's."""
    texts = [source.text for source in sources if not source.held_out]
    return make_vocabulary(size, texts=texts, pieces=pre_tokenizer())


def tokenizer_of(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of the file that is exported."""
    return Tokenizer(vocabulary.tokens, vocabulary.types, vocabulary.merges, 0, 1)


def prepare(folder: Path, sources: list[Source], config: ModelConfig) -> None:
    """Write what :mod:`tools.train_demo.train` and ``export`` read.

    ``config.json`` is transformers'. ``library.npy``, ``tests.npy``, ``chat.npy`` and
    ``held_out.npy`` are uint16 token ids, documents from BOS to EOS one after another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = demo_vocabulary(sources, config.vocab)
    tokenizer = tokenizer_of(vocabulary)
    parts = (vocabulary.tokens, vocabulary.types, vocabulary.merges)
    (folder / "vocabulary.json").write_text(json.dumps(parts, ensure_ascii=False))
    translate_config(config).save_pretrained(folder)
    trained = [source for source in sources if not source.held_out]
    for name, tests in (("library", False), ("tests", True)):
        chosen = (source for source in trained if source.is_test == tests)
        _save(folder / f"{name}.npy", (_document(tokenizer, source) for source in chosen))
    held_out = (_document(tokenizer, source) for source in sources if source.held_out)
    _save(folder / "held_out.npy", held_out)
    _save(folder / "chat.npy", _conversations(tokenizer, trained))


def load_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a prepared folder."""
    tokens, types, merges = json.loads((folder / "vocabulary.json").read_text())
    return Vocabulary(tuple(tokens), tuple(types), tuple(merges))


def _document(tokenizer: Tokenizer, source: Source) -> list[int]:
    return [tokenizer.bos_id, *tokenizer.encode(source.text), tokenizer.eos_id]


def _conversations(tokenizer: Tokenizer, sources: list[Source]) -> Iterator[list[int]]:
    """One exchange each, in an order that mixes modules."""
    encoding = ChatEncoding(tokenizer)
    end_think = tokenizer.id_of(END_THINK)
    found = list(chain.from_iterable(exchanges(source) for source in sources))
    for index in np.random.default_rng(0).permutation(len(found)):
        exchange = found[index]
        thinking = bool(index % _THINKS == 0)
        asked = {"role": "user", "content": exchange.question}
        prompt = encoding.render([asked], thinking=thinking).ids
        reasoning = [*tokenizer.encode(exchange.reasoning), end_think] if thinking else []
        yield [*prompt, *reasoning, *tokenizer.encode(exchange.answer), tokenizer.eos_id]


def _save(path: Path, documents: Iterator[list[int]]) -> None:
    ids: NDArray[np.uint16] = np.fromiter(chain.from_iterable(documents), np.uint16)
    np.save(path, ids)
