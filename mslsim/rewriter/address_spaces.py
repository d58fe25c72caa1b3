"""Address spaces: C++ has none, so they are erased.

Declarations that differ in nothing else become one: the first stays, and is used for all. They
are taken to compute the same, whatever their bodies.
"""

from dataclasses import dataclass, field

from mslsim.rewriter.source import Source

ADDRESS_SPACES = {"device", "thread", "threadgroup", "constant"}
# What may stand between the parameters and the address space of a member function, and after it.
BEFORE_QUALIFIER = {"const", "volatile", "noexcept"}
AFTER_QUALIFIER = {"{", ":", ";", "=", "noexcept", "const", "override", "->"}

Range = tuple[int, int]


def erase_address_spaces(source: Source) -> None:
    """Removes the address spaces; `constant` leaves a `const`."""
    for i, token in enumerate(source.tokens):
        if token.is_word and token.text in ADDRESS_SPACES:
            constant = token.text == "constant" and not qualifies_member_function(source, i)
            source.replace(i, "const" if constant else "")


def qualifies_member_function(source: Source, i: int) -> bool:
    """Whether an address space is one of `this`: `f() const device { ... }`."""
    before = i - 1
    while before >= 0 and source[before] in BEFORE_QUALIFIER:
        before -= 1
    return before >= 0 and source[before] == ")" and source[i + 1] in AFTER_QUALIFIER


def lacks_address_space(source: Source, parameter: Range) -> bool:
    """Whether a parameter is a pointer or reference that Apple's compiler refuses."""
    words = source.words(*parameter)
    words = words[: words.index("=")] if "=" in words else words
    depth = 0
    points = False
    for word in words:
        depth += (word == "<") - (word == ">")
        points |= depth == 0 and word in {"*", "&"}
    return points and not ADDRESS_SPACES.intersection(words) and "auto" not in words


@dataclass
class Overloads:
    """The declarations of one scope as written, by what is left without address spaces."""

    _seen: dict[str, str] = field(default_factory=dict)

    def repeats(self, source: Source, header: Range) -> bool:
        """Whether an earlier declaration differs from this one only in address spaces."""
        tokens = list(source.without_attributes(*header))
        written = " ".join(source[i] for i in tokens)
        erased = " ".join(without_address_spaces(source, tokens))
        return self._seen.setdefault(erased, written) != written


def without_address_spaces(source: Source, tokens: list[int]) -> list[str]:
    """The tokens of a declaration without address spaces, each `const` once."""
    words: list[str] = []
    for i in tokens:
        word = source[i]
        if source.is_word(i) and word in ADDRESS_SPACES:
            word = source.current(i)
        if word and not (word == "const" and words[-1:] == ["const"]):
            words.append(word)
    return words
