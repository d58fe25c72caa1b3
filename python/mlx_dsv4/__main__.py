"""``python -m mlx_dsv4`` is the same program as ``mlx-dsv4``."""

from mlx_dsv4.cli import main

if __name__ == "__main__":
    main()
