"""DeepSeek-V4-Flash on MLX: caches, lightning indexer, verifier prefill and decoding."""

__version__ = "0.1.0"
