"""What the machine can do, as a JSON line: ``python -m benchmarks.peers.ceilings``."""

import json

from mlx_dsv4.bench.machine import gflop_s, read_gb_s

if __name__ == "__main__":
    print(json.dumps({"read_gb_s": round(read_gb_s(), 2), "gflop_s": round(gflop_s(), 1)}))
