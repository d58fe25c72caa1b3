"""A program as tokens: finding one's way in it, and replacing parts of it."""

import re
from collections.abc import Iterator

from mslsim.rewriter.tokens import MslSyntaxError, lex

CLOSING = {"(": ")", "[": "]", "{": "}"}


class Source:
    """The tokens that have a meaning, by index, and the text that takes the place of some.

    Ranges are half open. Replaced text keeps its lines, so that the compiler's messages and the
    debug information stay on the lines of the shader.
    """

    def __init__(self, text: str) -> None:
        self._all = lex(text)
        self.tokens = [token for token in self._all if token.has_meaning]
        self._replaced: dict[int, str] = {}
        self._after: dict[int, str] = {}
        self._erased: set[int] = set()

    # Looking at tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> str:
        """The text of a token as it was written; empty past the end."""
        return self.tokens[i].text if i < len(self.tokens) else ""

    def words(self, begin: int, end: int) -> list[str]:
        """The tokens of a range as they were written."""
        return [token.text for token in self.tokens[begin:end]]

    def is_word(self, i: int) -> bool:
        """Whether the token is an identifier or a keyword."""
        return i < len(self.tokens) and self.tokens[i].is_word

    def where(self, i: int) -> str:
        """file:line of a token."""
        return self.tokens[min(i, len(self.tokens) - 1)].where

    def error(self, i: int, message: str) -> MslSyntaxError:
        """An exception about the place of a token."""
        return MslSyntaxError(f"{self.where(i)}: error: {message}")

    # Finding one's way

    def match(self, i: int) -> int:
        """The bracket that closes the one at `i`."""
        expected = [CLOSING[self[i]]]
        j = i
        while expected:
            j += 1
            if j >= len(self):
                raise self.error(i, f"unbalanced {self[i]}")
            text = self[j]
            if text in CLOSING:
                expected.append(CLOSING[text])
            elif text in {")", "]", "}"} and text != expected.pop():
                raise self.error(j, f"unexpected {text}")
        return j

    def match_angle(self, i: int) -> int:
        """The `>` that closes the `<` of a template at `i`."""
        depth = 0
        j = i
        while j < len(self) and self[j] not in {";", "}"}:
            text = self[j]
            # After a bracket or a literal it is less-than.
            if text == "<" and (j == i or self.is_word(j - 1)):
                depth += 1
            elif text == ">":
                depth -= 1
                if depth == 0:
                    return j
            elif text in CLOSING:
                j = self.match(j)
            j += 1
        raise self.error(i, "unbalanced <")

    def find(self, text: str, i: int) -> int:
        """The first such token from `i` on, outside of brackets."""
        while self[i] != text:
            if i >= len(self):
                raise self.error(i, f"expected {text}")
            i = self.match(i) + 1 if self[i] in CLOSING else i + 1
        return i

    def split(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The ranges between the commas of a range, outside of brackets and angles."""
        parts = []
        depth, first, i = 0, begin, begin
        while i < end:
            text = self[i]
            if text in CLOSING:
                i = self.match(i)
            elif text in {"<", ">"}:
                depth += 1 if text == "<" else -1
            elif text == "," and depth == 0:
                parts.append((first, i))
                first = i + 1
            i += 1
        return [*parts, (first, end)] if first < end else parts

    def is_attribute(self, i: int) -> bool:
        """Whether `[[` begins here."""
        return (
            self[i] == "["
            and self[i + 1] == "["
            and self.tokens[i + 1].position == self.tokens[i].position + 1
        )

    def attributes(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The range of each attribute of the `[[...]]` in a range."""
        i = begin
        while i < end:
            if self.is_attribute(i):
                close = self.match(i)
                yield from self.split(i + 2, close - 1)
                i = close
            i += 1

    def without_attributes(self, begin: int, end: int) -> Iterator[int]:
        """The tokens of a range that are not inside `[[...]]`."""
        i = begin
        while i < end:
            if self.is_attribute(i):
                i = self.match(i)
            else:
                yield i
            i += 1

    # Replacing text

    def current(self, i: int) -> str:
        """The text of a token, or what stands in its place."""
        token = self.tokens[i]
        return self._replaced.get(token.position, token.text)

    def text(self, begin: int, end: int) -> str:
        """The present text of a range on one line."""
        parts = [self.current(i) for i in range(begin, end)]
        return re.sub(r"\s+", " ", " ".join(part for part in parts if part)).strip()

    def replace(self, i: int, text: str) -> None:
        """Puts a text in the place of a token."""
        self._replaced[self.tokens[i].position] = text

    def erase(self, begin: int, end: int) -> None:
        """Removes a range, all but its line ends."""
        for i in range(begin, end):
            self.replace(i, "")
            self._erased.add(i)

    def insert_after(self, i: int, text: str) -> None:
        """Adds a text behind a token and behind what was added there before."""
        position = self.tokens[i].position
        self._after[position] = self._after.get(position, "") + text

    def erase_attributes(self) -> None:
        """Removes all `[[...]]` that are still there."""
        i = 0
        while i < len(self):
            if self.is_attribute(i) and i not in self._erased:
                close = self.match(i)
                self.erase(i, close + 1)
                i = close
            i += 1

    def rewritten(self) -> str:
        """The whole text with the replacements."""
        return "".join(
            self._replaced.get(token.position, token.text) + self._after.get(token.position, "")
            for token in self._all
        )
