"""Strings that end a text, found while it arrives in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to a stop string; holds back what may still become one.

    Of several strings the one that is complete first ends the text; of those, the longest.

    Args:
        strings: None of them empty.

    Attributes:
        found: The string that ended the text, or None.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = sorted(set(strings), key=len, reverse=True)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """Take the next piece; return the text that is certain, often more or less than it."""
        if self.found is not None or not self._strings:
            return "" if self.found else piece
        text = self._held + piece
        ends = [(text.find(s) + len(s), -len(s), s) for s in self._strings if s in text]
        if ends:
            end, _, self.found = min(ends)
            self._held = ""
            return text[: end - len(self.found)]
        self._held = text[len(text) - self._may_begin(text) :]
        return text[: len(text) - len(self._held)]

    def flush(self) -> str:
        """End the text and return what is held."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, text: str) -> int:
        """Characters at the end of ``text`` that a stop string begins with."""
        longest = min(max(map(len, self._strings)) - 1, len(text))
        for n in range(longest, 0, -1):
            if any(s.startswith(text[-n:]) for s in self._strings):
                return n
        return 0
