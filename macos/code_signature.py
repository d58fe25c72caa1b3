"""The ad-hoc code signature that the linker puts into a Mach-O file.

A superblob lists blobs; the code directory among them holds one hash per page of the file. All
numbers are big-endian (Apple's cs_blobs.h).
"""

import hashlib
import struct
from dataclasses import dataclass

import lief

SUPERBLOB, CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02
SLOT_CODE_DIRECTORY = 0
FLAG_AD_HOC = 0x2
HASHES = {1: "sha1", 2: "sha256"}
# magic, length, version, flags, hash offset, identifier offset, special slots, code slots,
# code limit, hash size, hash type, platform, log2 of the page size
CODE_DIRECTORY_FIELDS = struct.Struct(">9I4B")


@dataclass(frozen=True)
class CodeDirectory:
    """The hashes of the pages of a file.

    Attributes:
        flags: How it was signed.
        signed_bytes: Length of the part of the file that is hashed.
        page_bytes: Length of a page.
        algorithm: Name of the hash.
        hashes: One per page.
    """

    flags: int
    signed_bytes: int
    page_bytes: int
    algorithm: str
    hashes: tuple[bytes, ...]


def code_directory(image: lief.MachO.Binary, data: bytes) -> CodeDirectory | None:
    """The code directory of a file, or None where it has no signature that can be read."""
    signature = image.code_signature
    if signature is None:
        return None
    start = signature.data_offset
    blob = data[start : start + signature.data_size]
    magic, _, count = struct.unpack_from(">3I", blob)
    if magic != SUPERBLOB:
        return None
    slots = dict(struct.unpack_from(">2I", blob, 12 + 8 * i) for i in range(count))
    if SLOT_CODE_DIRECTORY not in slots:
        return None
    directory = blob[slots[SLOT_CODE_DIRECTORY] :]
    fields = CODE_DIRECTORY_FIELDS.unpack_from(directory)
    magic, _, _, flags, at, _, _, n_pages, limit, size, algorithm, _, log_page = fields
    if magic != CODE_DIRECTORY or algorithm not in HASHES or limit != start:
        return None
    hashes = tuple(directory[at + i * size : at + (i + 1) * size] for i in range(n_pages))
    return CodeDirectory(flags, limit, 1 << log_page, HASHES[algorithm], hashes)


def signature_flags(image: lief.MachO.Binary, data: bytes) -> str:
    """How a file is signed, in words."""
    directory = code_directory(image, data)
    if directory is None:
        return "none"
    return "ad hoc" if directory.flags & FLAG_AD_HOC else f"flags {directory.flags:#x}"


def damaged_pages(image: lief.MachO.Binary, data: bytes) -> list[int]:
    """Numbers of the pages whose contents differ from what was signed."""
    directory = code_directory(image, data)
    if directory is None:
        return []
    signed = data[: directory.signed_bytes]
    pages = [
        signed[at : at + directory.page_bytes] for at in range(0, len(signed), directory.page_bytes)
    ]
    hashes = [hashlib.new(directory.algorithm, page).digest() for page in pages]
    size = len(directory.hashes[0]) if directory.hashes else 0
    expected = list(directory.hashes) + [b""] * (len(hashes) - len(directory.hashes))
    return [
        i for i, (got, want) in enumerate(zip(hashes, expected, strict=True)) if got[:size] != want
    ]
