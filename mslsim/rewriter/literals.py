"""Literals: MSL has no double, and spells half and bfloat."""

import re

from mslsim.rewriter.source import Source

DECIMAL = r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?"
HEXADECIMAL = r"0[xX][\da-fA-F.]*[pP][+-]?\d+"
# With a point, an exponent, or both: a double to C++.
UNSUFFIXED = re.compile(rf"{DECIMAL}|\d+[eE][+-]?\d+|{HEXADECIMAL}")
NARROW = re.compile(rf"({DECIMAL}|\d+(?:[eE][+-]?\d+)?|{HEXADECIMAL})(h|H|bf|BF)")


def rewrite_literals(source: Source) -> None:
    """Makes floating literals float, or the narrow type that their suffix names."""
    for i, token in enumerate(source.tokens):
        if token.kind != "number":
            continue
        if UNSUFFIXED.fullmatch(token.text):
            source.replace(i, token.text + "f")
        elif narrow := NARROW.fullmatch(token.text):
            value = narrow[1] + ("f" if UNSUFFIXED.fullmatch(narrow[1]) else ".0f")
            source.replace(i, f"(({'half' if narrow[2] in 'hH' else 'bfloat'}){value})")
