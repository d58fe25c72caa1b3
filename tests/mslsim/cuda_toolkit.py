"""Whether cubins can be made on this machine."""

import pytest

from mslsim.cuda import toolkit
from mslsim.errors import ShaderError


def problem() -> str:
    """What is missing; empty where nothing is."""
    try:
        toolkit()
    except ShaderError as error:
        return str(error)
    return ""


needs_toolkit = pytest.mark.skipif(bool(problem()), reason=problem())
