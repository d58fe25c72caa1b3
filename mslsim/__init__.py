"""Runs unmodified Metal compute shaders on the CPU, and reports what is wrong with them."""

from mslsim.errors import ShaderError
from mslsim.kernel import Kernel
from mslsim.library import Library
from mslsim.report import Finding, Report

__all__ = ["Finding", "Kernel", "Library", "Report", "ShaderError"]
