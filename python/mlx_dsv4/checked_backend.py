"""Importing this module checks the installed MLX; packages that use MLX import it first."""

from mlx_dsv4.backend import check_backend

check_backend()
