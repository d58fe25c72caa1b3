"""Seconds to open a GGUF file with the vocabulary and the tensor table of V4-Flash.

The header is what a start waits for before anything can be shown: 257,021 strings and 1,328
tensor entries. The file is in the page cache; tensor data is a hole in it.
"""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import gguf
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.gguf import GGUFFile, expected_tensors

N_MERGES = 127_741
REPEATS = 9


def write_header(path: Path) -> None:
    """A file whose header is as long as a real one; its tensors are all zeros."""
    writer = gguf.GGUFWriter(path, "deepseek4")
    writer.add_token_list([f"Ġtoken{i}" for i in range(V4_FLASH.vocab)])
    writer.add_token_merges([f"Ġto{i} ken" for i in range(N_MERGES)])
    writer.add_token_types([1] * V4_FLASH.vocab)
    for name, spec in expected_tensors(V4_FLASH).items():
        n_bytes = 2 * math.prod(spec.shape)
        writer.add_tensor_info(name, spec.shape, np.dtype(np.float16), n_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        write_header(path)
        header_bytes = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        samples = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            with GGUFFile(path) as opened:
                samples.append(time.perf_counter() - start)
            assert len(opened.tensors) == 1328
            merges = opened.metadata["tokenizer.ggml.merges"]
            assert isinstance(merges, Sequence)
            assert len(merges) == N_MERGES
    median = statistics.median(samples)
    print(f"gguf_header  {V4_FLASH.vocab} tokens  {header_bytes} bytes  {median:.3f} s")
    record = {"kernel": "gguf_header", "case": f"vocab{V4_FLASH.vocab}", "bytes": header_bytes}
    print(json.dumps(record | {"s_p50": round(median, 4), "s_min": round(min(samples), 4)}))


if __name__ == "__main__":
    main()
