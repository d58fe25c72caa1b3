"""What the kernels cannot serve, told when a model is made and not in the middle of a prompt."""

from mlx_dsv4.cache.plan import WINDOW
from mlx_dsv4.config import ModelConfig

MOST_STREAMS = 8
MOST_EXPERTS_USED = 16
MOST_ITERATIONS = 10_000
LARGEST_INT32 = 2**31 - 1
LANES = 16
FP8_BLOCK = 64
FP4_BLOCK = 32


def unmet_limits(config: ModelConfig, numerics: str) -> list[str]:
    """One line per number of the model that a kernel does not support; empty if it runs.

    Args:
        config: Numbers of the model.
        numerics: "official" needs more of the dims than "plain".
    """
    indexed = 4 in config.ratios
    rules = [
        ("hidden", config.hidden, config.hidden % LANES == 0, f"a multiple of {LANES}"),
        ("head_dim", config.head_dim, config.head_dim % LANES == 0, f"a multiple of {LANES}"),
        ("window", config.window, config.window == WINDOW, f"{WINDOW}"),
        ("streams", config.streams, config.streams <= MOST_STREAMS, f"at most {MOST_STREAMS}"),
        (
            "experts_used",
            config.experts_used,
            config.experts_used <= MOST_EXPERTS_USED,
            f"at most {MOST_EXPERTS_USED}",
        ),
        (
            "sinkhorn_iterations",
            config.sinkhorn_iterations,
            config.sinkhorn_iterations <= MOST_ITERATIONS,
            f"at most {MOST_ITERATIONS}",
        ),
        ("context", config.context, config.context <= LARGEST_INT32, f"at most {LARGEST_INT32}"),
        ("top_k", config.top_k, config.top_k <= LARGEST_INT32, f"at most {LARGEST_INT32}"),
    ]
    dim = config.indexer_dim
    if indexed:
        rules.append(("indexer_dim", dim, dim % LANES == 0, f"a multiple of {LANES}"))
    if numerics == "official":
        plain = config.head_dim - config.rope_dim
        rule = f"a multiple of {FP8_BLOCK} above rope_dim for official numerics"
        rules.append(("head_dim", config.head_dim, plain % FP8_BLOCK == 0, rule))
        rule = f"a power of two from {FP4_BLOCK} on for official numerics"
        power = dim >= FP4_BLOCK and dim & (dim - 1) == 0
        rules.append(("indexer_dim", dim, power or not indexed, rule))
    return [f"{name} must be {rule}; got {value}" for name, value, met, rule in rules if not met]
