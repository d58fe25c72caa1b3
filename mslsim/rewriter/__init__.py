"""Rewrites preprocessed MSL into C++17 that a host compiler takes."""

from mslsim.rewriter.rewriter import MslSyntaxError, rewrite

__all__ = ["MslSyntaxError", "rewrite"]
