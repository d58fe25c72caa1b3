"""What servers import: load a model, open sessions, generate, stream and chat."""

from mlx_dsv4 import checked_backend  # noqa: F401 - before MLX is imported
from mlx_dsv4.engine.engine import Engine, decode_limit
from mlx_dsv4.engine.events import (
    Done,
    Event,
    Progress,
    Reasoning,
    Result,
    Reuse,
    Text,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from mlx_dsv4.engine.load_info import LoadInfo, Serving, SlotStatus, Status
from mlx_dsv4.engine.params import Params
from mlx_dsv4.engine.sampling import Sampler, TokenLogprob
from mlx_dsv4.engine.session import Session
from mlx_dsv4.engine.stream import Stream

__all__ = [
    "Done",
    "Engine",
    "Event",
    "LoadInfo",
    "Params",
    "Progress",
    "Reasoning",
    "Result",
    "Reuse",
    "Sampler",
    "Serving",
    "Session",
    "SlotStatus",
    "Status",
    "Stream",
    "Text",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "decode_limit",
]
