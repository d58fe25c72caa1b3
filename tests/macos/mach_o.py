"""Mach-O files for the tests of the wheel check: small, signed, and wrong where a test wants it."""

import hashlib
import struct
from dataclasses import dataclass, field

ARM64, X86_64 = 0x0100000C, 0x01000007
DYLIB, BUNDLE = 6, 8
FLAT = 254  # library ordinal of a symbol that is looked up everywhere
PAGE_BYTES = 4096
AD_HOC = 2

HEADER = struct.Struct("<8I")
SEGMENT = struct.Struct("<2I16s4Q4I")
SECTION = struct.Struct("<16s16s2Q8I")
SYMBOL = struct.Struct("<I2BHQ")
TEXT = b"__TEXT".ljust(16, b"\0")
DIRECTORY_BYTES = 44  # of a code directory, before the hashes
CODE_AT = 4096  # the load commands come before


@dataclass(frozen=True)
class MachO:
    """What one file holds.

    Attributes:
        data: Bytes of its only section.
        exports: Symbols it defines.
        imports: Symbols it needs, each with the install name of its library, "" for a flat lookup.
        libraries: Install names of those it loads.
        rpaths: Folders that ``@rpath`` stands for.
        kind: BUNDLE or DYLIB.
        machine: ARM64 or X86_64.
        minimum: Lowest release of macOS.
        signature: Flags of its code signature; None: it has none.
    """

    data: bytes
    exports: tuple[str, ...] = ()
    imports: tuple[tuple[str, str], ...] = ()
    libraries: tuple[str, ...] = ()
    rpaths: tuple[str, ...] = ()
    kind: int = BUNDLE
    machine: int = ARM64
    minimum: tuple[int, int] = (14, 0)
    signature: int | None = AD_HOC
    extra: bytes = field(default=b"", repr=False)  # replaces as many bytes of data once signed

    def to_bytes(self) -> bytes:
        """The file."""
        names, symbols = self.symbol_table()
        trie = export_trie(self.exports)
        trie_at = CODE_AT + len(self.data)
        symbols_at = trie_at + len(trie)
        names_at = symbols_at + len(symbols)
        signature_at = -(-(names_at + len(names)) // 16) * 16
        pages = -(-signature_at // PAGE_BYTES)
        signature_bytes = 0 if self.signature is None else 64 + 32 * pages
        end = signature_at + signature_bytes
        commands = [
            segment(b"__TEXT", 0, trie_at, section=(CODE_AT, len(self.data))),
            segment(b"__LINKEDIT", trie_at, end - trie_at),
            struct.pack("<4I", 0x80000033, 16, trie_at, len(trie)),
            struct.pack(
                "<6I", 2, 24, symbols_at, len(symbols) // SYMBOL.size, names_at, len(names)
            ),
            struct.pack("<6I", 0x32, 24, 1, version(self.minimum), version(self.minimum), 0),
            *(path_command(0xC, (2, 0x10000, 0x10000), name) for name in self.libraries),
            *(path_command(0x8000001C, (), path) for path in self.rpaths),
        ]
        if self.signature is not None:
            commands.append(struct.pack("<4I", 0x1D, 16, signature_at, signature_bytes))
        body = b"".join(commands)
        flags = 0x85  # no undefined symbols at link time, for dyld, two-level names
        header = HEADER.pack(
            0xFEEDFACF, self.machine, 0, self.kind, len(commands), len(body), flags, 0
        )
        content = (header + body).ljust(CODE_AT, b"\0") + self.data + trie + symbols + names
        content = content.ljust(signature_at, b"\0")
        if self.signature is not None:
            content += code_signature(content, self.signature)
        return content[:CODE_AT] + self.extra + content[CODE_AT + len(self.extra) :]

    def symbol_table(self) -> tuple[bytes, bytes]:
        """The names of all symbols, and the table that points to them."""
        names, table = b"\0", b""
        for name in self.exports:
            table += SYMBOL.pack(len(names), 0x0F, 1, 0, CODE_AT)
            names += name.encode() + b"\0"
        for name, library in self.imports:
            ordinal = self.libraries.index(library) + 1 if library else FLAT
            table += SYMBOL.pack(len(names), 0x01, 0, ordinal << 8, 0)
            names += name.encode() + b"\0"
        return names, table


def export_trie(names: tuple[str, ...]) -> bytes:
    """The names that dyld finds in the file: a root with one child for each."""
    at = 2 + sum(len(name) + 3 for name in names)
    root, children = bytes([0, len(names)]), b""
    for name in names:
        node_at = at + len(children)
        root += name.encode() + bytes([0, node_at & 0x7F | 0x80, node_at >> 7])
        children += bytes([3, 0, CODE_AT & 0x7F | 0x80, CODE_AT >> 7, 0])
    return root + children


def version(release: tuple[int, int]) -> int:
    return release[0] << 16 | release[1] << 8


def segment(name: bytes, at: int, size: int, section: tuple[int, int] | None = None) -> bytes:
    """A load command that maps a part of the file, with at most one section."""
    n = int(section is not None)
    fields = (at, size, at, size, 7, 7, n, 0)
    command = SEGMENT.pack(0x19, SEGMENT.size + n * SECTION.size, name.ljust(16, b"\0"), *fields)
    if section is not None:
        begin, length = section
        data = b"__const".ljust(16, b"\0")
        command += SECTION.pack(data, TEXT, begin, length, begin, 0, 0, 0, 0, 0, 0, 0)
    return command


def path_command(kind: int, fields: tuple[int, ...], path: str) -> bytes:
    """A load command that holds a path after its fields."""
    begin = 12 + 4 * len(fields)
    size = -(-(begin + len(path) + 1) // 8) * 8
    head = struct.pack(f"<{3 + len(fields)}I", kind, size, begin, *fields)
    return (head + path.encode()).ljust(size, b"\0")


def code_signature(content: bytes, flags: int) -> bytes:
    """A superblob with one code directory: a SHA-256 hash of every page."""
    pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
    hashes = b"".join(hashlib.sha256(page).digest() for page in pages)
    fields = struct.pack(
        ">9I4BI",
        *(0xFADE0C02, DIRECTORY_BYTES + len(hashes), 0x20001, flags, DIRECTORY_BYTES),
        *(0, 0, len(pages), len(content), 32, 2, 0, 12, 0),
    )
    size = 20 + DIRECTORY_BYTES + len(hashes)
    return struct.pack(">5I", 0xFADE0CC0, size, 1, 0, 20) + fields + hashes


def universal(*images: tuple[int, bytes]) -> bytes:
    """A file with one image per architecture."""
    at = 4096
    table, body = struct.pack(">2I", 0xCAFEBABE, len(images)), b""
    for machine, image in images:
        table += struct.pack(">5I", machine, 0, at + len(body), len(image), 12)
        body += image.ljust(-(-len(image) // 4096) * 4096, b"\0")
    return table.ljust(at, b"\0") + body
