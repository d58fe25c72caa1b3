"""The demo model: a file of a few megabytes that comes with the package."""

from pathlib import Path

# Trained on the sources of Python's standard library; docs/demo-model.md.
DEMO_MODEL = Path(__file__).parent / "data" / "demo.gguf"
