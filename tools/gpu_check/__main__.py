"""`tools/gpu_check.sh pack`, `run [OUT]` and `bench [OUT]`."""

import argparse
from pathlib import Path

from tools.gpu_check.pack import pack
from tools.gpu_check.run import bench, run

PACK = Path("build/gpu_check/gpu_check.tar")


def main() -> None:
    """Packs here, or runs or measures there."""
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pack", help=f"write {PACK}")
    there = commands.add_parser("run", help="run the checks of the pack on this machine's GPU")
    there.add_argument("out", nargs="?", type=Path, default=Path("build/gpu_check/report"))
    there.add_argument("--seconds", type=int, default=530, help="for everything")
    there.add_argument("--workers", type=int, help="processes at once; one per core but two")
    timed = commands.add_parser("bench", help="time the pack's kernels on this machine's GPU")
    timed.add_argument("out", nargs="?", type=Path, default=Path("build/gpu_check/bench.jsonl"))
    arguments = parser.parse_args()
    if arguments.command == "pack":
        pack(PACK)
    elif arguments.command == "bench":
        bench(PACK, arguments.out)
    else:
        run(PACK, arguments.out, arguments.seconds, arguments.workers)


if __name__ == "__main__":
    main()
