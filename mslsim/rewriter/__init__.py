"""Rewrites preprocessed MSL into C++17 that a host compiler takes."""

from mslsim.rewriter.rewriter import Rewritten, rewrite
from mslsim.rewriter.tokens import MslSyntaxError

__all__ = ["MslSyntaxError", "Rewritten", "rewrite"]
