"""A small byte-level BPE vocabulary with DeepSeek's special tokens, the same on every machine."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

# Token types of GGUF.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
_FIRST = (BOS, EOS, PAD)
# After the model's own tokens, in the order of DeepSeek's vocabulary.
_ADDED = {
    "<｜User｜>": CONTROL,
    "<｜Assistant｜>": CONTROL,
    "<think>": USER_DEFINED,
    "</think>": USER_DEFINED,
    "｜DSML｜": USER_DEFINED,
    "<｜latest_reminder｜>": CONTROL,
}

_MIN_PLACEHOLDERS = 16
_MIN_SIZE = 300

_TEXT = """\
A language model reads a text from left to right, one token at a time, and for every token it
writes down what it has to remember. Most of what is remembered is about the last few words: the
window keeps the rows of the newest tokens in a ring, and each token that arrives takes the place
of the oldest one. What lies further back is folded into spans. When the last token of a span has
come, the span is closed, and one compressed row stands for all of its tokens from then on. Some
layers fold four tokens into a row, others fold many more, and the first layers fold none at all.

Which of the rows matter to the token that is being read? A small indexer gives every row a score,
and only the rows with the highest scores are selected. Where two scores are equal the lower row
wins, so that the answer does not depend on how the text was cut into pieces. Then attention looks
at the selected rows and at the window together, and what it finds is added to the stream of the
token. There are four streams, and before and after each part of a layer they are mixed with one
another by a table whose rows and columns sum to one.

After attention the router sends the token to a few experts. In the first layers a table says which
experts belong to which token; in the other layers the experts with the best scores are chosen. One
expert is shared by all tokens. The results are weighted, summed and given back to the streams, and
the next layer begins. At the end the streams become one vector, the vector becomes a score for
every token of the vocabulary, and one of them is drawn. It is appended to the text, and everything
starts again with the text that is now one token longer.

def step(token, cache):
    for layer in model.layers:
        token = layer(token, cache)
    return model.output(token)

The quick brown fox jumps over the lazy dog. Does it? "Yes," said the dog, "it does: every day, at
noon and at midnight." The fox's answer was short; the dog's was not. If you want to know the time,
ask the one who is there. We are, you are, they are; I am, he is, she is. This is that, and that is
this. Where there was nothing there is something, and when there is something there will be more.
One, two, three, four, five, six, seven, eight, nine, ten. Monday, Tuesday, Wednesday. Spring and
summer, autumn and winter. Water, fire, earth and air. The first, the second and the third of them.

Ein Modell liest einen Text und schreibt auf, was es sich merken muß. Un modèle lit un texte et
écrit ce qu'il doit retenir. El modelo lee un texto y escribe lo que tiene que recordar. Модель
читает текст и записывает то, что нужно помнить. 模型从左到右阅读文本，并记下需要记住的内容。
モデルはテキストを読み、覚えておくべきことを書き留めます。모델은 글을 읽고 기억할 것을 적어 둡니다.

if (row < visible_rows(pos, ratio)) { score[row] = dot(query, key[row]); } else { continue; }
{"role": "user", "content": "What is the capital of France?", "tools": [], "stream": true}
{"role": "assistant", "content": "The capital of France is Paris.", "stop": null}
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The arrays that GGUF keeps of a byte-level BPE tokenizer; index in ``tokens`` is the id."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]

    def id_of(self, token: str) -> int:
        """The id of a token written as it is stored.

        Raises:
            ValueError: no such token.
        """
        return self.tokens.index(token)


def make_vocabulary(
    size: int = 1024,
    *,
    texts: Iterable[str] = (_TEXT,),
    pieces: pre_tokenizers.PreTokenizer | None = None,
) -> Vocabulary:
    """Train a byte-level BPE and lay it out as DeepSeek does.

    Begin, end and padding have ids 0 to 2; the 256 bytes and the merged pieces follow, then the
    special tokens. Placeholders, of which there are some at any size, fill up the rest.

    Args:
        size: Number of tokens, at least 300.
        texts: To train on; one of this module is the default.
        pieces: What merges stay within; None is bytes with GPT-2's split into words.

    Raises:
        ValueError: ``size`` leaves no room for bytes and special tokens.
    """
    if size < _MIN_SIZE:
        raise ValueError(f"size must be at least {_MIN_SIZE}; got {size}")
    n_trained = size - len(_FIRST) - len(_ADDED) - _MIN_PLACEHOLDERS
    words = pieces or pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained, merges = _train(n_trained, texts, words)
    tokens = [*_FIRST, *trained, *_ADDED]
    types = [CONTROL] * len(_FIRST) + [NORMAL] * len(trained) + [*_ADDED.values()]
    placeholders = [f"<｜place▁holder▁no▁{i}｜>" for i in range(size - len(tokens))]
    return Vocabulary(
        tokens=(*tokens, *placeholders),
        types=(*types, *[CONTROL] * len(placeholders)),
        merges=tuple(merges),
    )


def _train(
    size: int, texts: Iterable[str], words: pre_tokenizers.PreTokenizer
) -> tuple[list[str], list[str]]:
    """Pieces in id order and merges in rank order of a BPE with at most ``size`` pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return pieces, [" ".join(pair) for pair in model["merges"]]
