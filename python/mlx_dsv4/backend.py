"""Whether the installed MLX is the one this package was compiled for, told before it is loaded."""

import importlib
from importlib import metadata

REINSTALL = "pip install --force-reinstall --no-deps mlx-dsv4"


def built_for() -> str:
    """The MLX version this package was compiled against.

    Raises:
        ImportError: the package was not built, only its sources are on the path.
    """
    try:
        info = importlib.import_module("mlx_dsv4._build_info")
    except ImportError as error:
        raise ImportError(
            "mlx_dsv4 is not built: run `make venv`, or `pip install '.[cpu]'` in its folder "
            "(plain `.` on macOS)"
        ) from error
    return str(info.MLX_VERSION)


def installed_mlx() -> str:
    """The version of the installed ``mlx`` distribution.

    Raises:
        ImportError: there is none.
    """
    try:
        return metadata.version("mlx").split("+")[0]
    except metadata.PackageNotFoundError:
        raise ImportError(
            f"mlx_dsv4 needs mlx=={built_for()}, and no mlx is installed: {advice(built_for())}"
        ) from None


def advice(version: str) -> str:
    """How to install an MLX with a backend."""
    return (
        f"pip install 'mlx[cpu]=={version}' on Linux (or mlx[cuda13]), "
        f"pip install mlx=={version} on macOS"
    )


def check_backend() -> None:
    """Import ``mlx.core`` after making sure that the extension fits it.

    MLX has no stable C++ ABI: with another version the extension would fail to load, or load and
    refuse every array.

    Raises:
        ImportError: says what is installed, what is needed and what to type.
    """
    wanted, installed = built_for(), installed_mlx()
    if installed != wanted:
        raise ImportError(
            f"mlx_dsv4 was compiled for mlx {wanted} and mlx {installed} is installed; MLX has no "
            f"stable C++ ABI. Either {advice(wanted)}, or rebuild: {REINSTALL}"
        )
    try:
        importlib.import_module("mlx.core")
    except ImportError as error:
        raise ImportError(
            f"mlx.core cannot be imported ({error}). On Linux the plain mlx wheel has no backend: "
            f"{advice(wanted)}, or install mlx-dsv4[cpu]"
        ) from error
