"""Small damage to files: to the document, before it is written, and to the bytes, after it."""

import math
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz.corpus import TYPE_IDS, corpus, restore_as, unusual_model
from fuzz.document import ARRAY, NUMBER_BYTES, STRING, Document, Encoded, Key, Tensor
from mlx_dsv4.gguf import block_shape
from mlx_dsv4.gguf.blocks import FORMATS

# What a damaged count, length or offset is likely to do harm with.
BOUNDARIES = (
    *(0, 1, 2, 4, 5, 127, 128, 255, 2**16, 2**24, 2**24 + 1, 2**26, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1),
)
_FLOATS = (0.0, -0.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"), 0.5, 1e9)
_MOST_BYTES = 1 << 22


def make_input(seed: int, index: int) -> dict[str, bytes]:
    """The files of input ``index``: the same for the same seed, whatever came before."""
    rng = Random(f"{seed} {index}")
    # A wrong document, whose counts and offsets are right, gets further than wrong bytes do.
    in_document, in_bytes = rng.choice(((0, 1), (0, 3), (1, 0), (1, 0), (2, 0), (3, 0), (1, 1)))
    if rng.random() < 0.15:
        files = {"unusual.gguf": unusual_model(rng)}
        in_document, in_bytes = rng.choice(((0, 0), (0, 0), (1, 0)))
    else:
        files = {name: document.copy() for name, document in rng.choice(corpus()).items()}
    for _ in range(in_document):
        rng.choice(DOCUMENT_MUTATIONS)(rng, rng.choice(list(files.values())))
    encoded = {name: document.encode() for name, document in files.items()}
    for _ in range(in_bytes):
        rng.choice(BYTE_MUTATIONS)(rng, rng.choice(list(encoded.values())))
    raw = {name: bytes(file.raw) for name, file in encoded.items()}
    if len(raw) > 1 and rng.random() < 0.1:
        _confuse_parts(rng, raw)
    return raw


def _confuse_parts(rng: Random, raw: dict[str, bytes]) -> None:
    """One part is missing, or holds what another does."""
    name, other = rng.sample(list(raw), 2)
    if rng.random() < 0.5:
        raw[name] = raw[other]
    elif name != min(raw):
        del raw[name]


# In the document.


def _drop_repeat_or_move(rng: Random, document: Document) -> None:
    lists: tuple[list[Any], list[Any]] = (document.keys, document.tensors)
    entries = rng.choice(lists)
    if not entries:
        return
    at, to = rng.randrange(len(entries)), rng.randrange(len(entries))
    kind = rng.randrange(3)
    if kind == 0:
        del entries[at]
    elif kind == 1:
        entries.insert(to, entries[at])
    else:
        entries[at], entries[to] = entries[to], entries[at]


def _rename(rng: Random, document: Document) -> None:
    entries: list[Key | Tensor] = [*document.keys, *document.tensors]
    entry = rng.choice(entries)
    name = bytearray(entry.name or b"x")
    kind = rng.randrange(4)
    if kind == 0:
        name[rng.randrange(len(name))] = rng.randrange(256)
    elif kind == 1:
        name = bytearray(rng.choice(entries).name)
    elif kind == 2:
        name *= rng.choice((0, 2, 1000))
    else:
        name = bytearray(bytes(name).replace(b"blk.0", b"blk.%d" % rng.choice(BOUNDARIES)))
    entry.name = bytes(name)


def _numbers(rng: Random, type_id: int, count: int) -> bytes:
    size = NUMBER_BYTES[type_id]
    if type_id in (6, 12):
        return b"".join(
            struct.pack("<f" if size == 4 else "<d", rng.choice(_FLOATS)) for _ in range(count)
        )
    mask = (1 << 8 * size) - 1
    values = (rng.choice((*BOUNDARIES, -1, 3)) & mask for _ in range(count))
    return b"".join(value.to_bytes(size, "little") for value in values)


def _nudge(rng: Random, document: Document) -> None:
    """A number of the metadata a little more or less: what a model can have, or just cannot."""
    numbers = [key for key in document.keys if key.type_id in (4, 5, 10, 11)]
    if numbers:
        key = rng.choice(numbers)
        found = int.from_bytes(key.body, "little")
        value = rng.choice((found + 1, found - 1, 2 * found, found // 2, found + 16, 10_000))
        key.body = (value & (1 << 8 * len(key.body)) - 1).to_bytes(len(key.body), "little")


def _revalue(rng: Random, document: Document) -> None:
    """Another value for a key: of its type, of another one, or that of another key."""
    if not document.keys:
        return
    key, kind = rng.choice(document.keys), rng.randrange(5)
    if kind == 0:
        other = rng.choice(document.keys)
        key.type_id, key.body = other.type_id, other.body
    elif kind == 1:
        text = rng.choice((b"", b"\0", b"\xff", "模型".encode(), b"[/x]" * 50, rng.randbytes(9)))
        key.type_id, key.body = STRING, struct.pack("<Q", len(text)) + text
    elif kind == 2:
        item, count = rng.choice(list(NUMBER_BYTES)), rng.choice((0, 1, 3, 43, 300, 20_000))
        key.type_id = ARRAY
        key.body = struct.pack("<IQ", item, count) + _numbers(rng, item, count)
    else:
        of_its_type = key.type_id if key.type_id in NUMBER_BYTES else 4
        key.type_id = of_its_type if kind == 3 else rng.choice(list(NUMBER_BYTES))
        key.body = _numbers(rng, key.type_id, 1)


def _stretch_array(rng: Random, document: Document) -> None:
    """An array of another length, its items as they were, again and again."""
    arrays = [key for key in document.keys if key.type_id == ARRAY and len(key.body) > 12]
    if not arrays:
        return
    key = rng.choice(arrays)
    item, count = struct.unpack_from("<IQ", key.body)
    times = rng.choice((2, 16, 1000))
    if len(key.body) * times < _MOST_BYTES:
        key.body = struct.pack("<IQ", item, count * times) + key.body[12:] * times


def _many_layers(rng: Random, document: Document) -> None:
    """As many layers as the arrays of a file of this size can have."""
    layers = rng.choice((44, 1000, 100_000))
    for key in document.keys:
        if key.name.endswith(b"block_count"):
            key.body = struct.pack("<I", layers)
        elif key.name.endswith(b"compress_ratios"):
            key.body = struct.pack("<IQ", 0, layers) + rng.choice((b"\0", b"\4")) * layers
        elif b"swiglu_clamp" in key.name:
            key.type_id, key.body = 6, struct.pack("<f", 1)


def _reformat(rng: Random, document: Document) -> None:
    """Tensors in another block format that fits their rows, with random bytes."""
    of_their_shape = [t for t in document.tensors if 0 < math.prod(t.dims) < _MOST_BYTES and t.dims]
    for tensor in rng.sample(of_their_shape, min(len(of_their_shape), rng.choice((1, 3)))):
        fitting = [f for f in FORMATS.values() if tensor.dims[0] % block_shape(f)[0] == 0]
        restore_as(tensor, rng.choice(fitting), rng.randbytes)


def _reshape(rng: Random, document: Document) -> None:
    """Other dims for a tensor, its bytes as they were."""
    if not document.tensors:
        return
    tensor, kind = rng.choice(document.tensors), rng.randrange(4)
    if kind == 0:
        tensor.dims.reverse()
    elif kind == 1:
        tensor.dims.append(rng.choice((0, 1, 2, 2**63)))
    elif kind == 2:
        del tensor.dims[-1]
    else:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(BOUNDARIES)


def _retype(rng: Random, document: Document) -> None:
    if document.tensors:
        ids = (*TYPE_IDS.values(), 4, 31, 42, 2**31, 2**32 - 1)
        rng.choice(document.tensors).type_id = rng.choice(ids)


def _refill(rng: Random, document: Document) -> None:
    """Other bytes of the right number: what the loader or a kernel cannot know before."""
    if document.tensors:
        tensor = rng.choice(document.tensors)
        pattern = rng.choice((b"\0", b"\xff", b"\x80", struct.pack("<f", float("nan"))))
        n_bytes = len(tensor.data)
        filled = (pattern * n_bytes)[:n_bytes]
        tensor.data = rng.choice((rng.randbytes(n_bytes), filled))


def _realign(rng: Random, document: Document) -> None:
    """Another alignment, kept by the data or not."""
    alignment = rng.choice((1, 2, 8, 64, 4096, 2**31))
    document.keys.append(Key(b"general.alignment", 4, struct.pack("<I", alignment)))
    if alignment <= 4096 and rng.random() < 0.7:
        document.alignment = alignment


DOCUMENT_MUTATIONS: tuple[Callable[[Random, Document], None], ...] = (
    _drop_repeat_or_move,
    _rename,
    _nudge,
    _nudge,
    _revalue,
    _revalue,
    _revalue,
    _stretch_array,
    _many_layers,
    _reformat,
    _reformat,
    _reshape,
    _retype,
    _refill,
    _refill,
    _realign,
)


# In the bytes.


def _place(rng: Random, file: Encoded) -> int:
    end = file.header_end if rng.random() < 0.8 else len(file.raw)
    return rng.randrange(max(min(end, len(file.raw)), 1))


def _flip(rng: Random, file: Encoded) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = _place(rng, file)
        if at < len(file.raw):
            file.raw[at] ^= rng.choice((1 << rng.randrange(8), 255))


def _renumber(rng: Random, file: Encoded) -> None:
    """A boundary, or a neighbour of what stands there, in a number of the header."""
    at = rng.choice(file.fields[: file.n_key_fields] if rng.random() < 0.5 else file.fields)
    found = int.from_bytes(file.raw[at.start : at.start + at.size], "little")
    near = (found - 1, found + 1, 2 * found, found // 2, found ^ 1 << (8 * at.size - 1))
    value = rng.choice((*BOUNDARIES, *near, *near, len(file.raw), file.header_end))
    mask = (1 << 8 * at.size) - 1
    file.raw[at.start : at.start + at.size] = (value & mask).to_bytes(at.size, "little")


def _truncate(rng: Random, file: Encoded) -> None:
    del file.raw[_place(rng, file) :]


def _splice(rng: Random, file: Encoded) -> None:
    """Bytes of one place, of another file, or of nowhere, put in or over those of another."""
    source = file.raw
    if rng.random() < 0.3:
        source = rng.choice(list(rng.choice(corpus()).values())).encode().raw
    start = rng.randrange(max(len(source), 1))
    piece = bytes(source[start : start + rng.choice((1, 8, 64, 1000))])
    piece *= rng.choice((1, 1, 2, 100))
    at, kind = _place(rng, file), rng.randrange(3)
    file.raw[at : at + (len(piece) if kind else 0)] = b"" if kind == 2 else piece


BYTE_MUTATIONS: tuple[Callable[[Random, Encoded], None], ...] = (
    _flip,
    _flip,
    _renumber,
    _renumber,
    _renumber,
    _renumber,
    _truncate,
    _splice,
)
