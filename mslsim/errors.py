"""What the simulator raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mslsim.report import Report


class ShaderError(Exception):
    """A shader does not compile, is launched wrongly, or does something that it must not."""

    def __init__(self, message: str, report: Report | None = None) -> None:
        super().__init__(message)
        self.report = report
