"""What callers hand to an engine, checked before anything is done with it."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from os import PathLike
from typing import get_args

from mlx_dsv4.cache import CacheStore
from mlx_dsv4.engine.load_info import Serving
from mlx_dsv4.engine.params import Params
from mlx_dsv4.errors import ConfigError, ParamsError, PlanError, PromptError
from mlx_dsv4.gguf.release import Release
from mlx_dsv4.model import Numerics

MOST_SLOTS = 1024
_PARAMS = {field.name for field in fields(Params)}


def check_load(
    path: object,
    *,
    slots: object,
    numerics: object,
    release: object,
    store: object,
    serving: object,
) -> None:
    """Refuse what an engine cannot be loaded with.

    Raises:
        PlanError: ``slots`` is no number of slots.
        ConfigError: another argument is of the wrong type, or none of its words.
    """
    _expect("path", isinstance(path, str | PathLike), "a str or os.PathLike", path)
    is_store = store is None or isinstance(store, str | PathLike | CacheStore)
    _expect("store", is_store, "a folder (str or os.PathLike), a CacheStore or None", store)
    _expect("serving", serving is None or isinstance(serving, Serving), "a Serving", serving)
    _expect("numerics", numerics in get_args(Numerics), "official or plain", numerics)
    known = release is None or release in get_args(Release)
    _expect("release", known, "preview, 0731 or None", release)
    whole = isinstance(slots, int) and not isinstance(slots, bool)
    if not whole or not 1 <= slots <= MOST_SLOTS:  # type: ignore[operator]
        raise PlanError(f"slots must be an integer in 1..{MOST_SLOTS}; got {slots!r}")


def check_prompt(prompt: object) -> None:
    """Refuse what is neither text nor a sequence; whoever reads the ids checks them.

    Raises:
        PromptError: it is something else.
    """
    if isinstance(prompt, bytes | bytearray | memoryview) or not isinstance(prompt, Iterable):
        raise PromptError(f"prompt must be text or token ids; got {prompt!r}")


def check_params(params: object, keywords: Mapping[str, object]) -> None:
    """Refuse what says how to draw in another way than by a :class:`Params`.

    Args:
        params: The argument of that name.
        keywords: Arguments that no method has.

    Raises:
        ParamsError: ``params`` is something else.
        TypeError: there are such arguments.
    """
    for name, value in keywords.items():
        if name in _PARAMS:
            raise TypeError(f"{name} must be asked for as Params({name}={value!r})")
        raise TypeError(f"there is no argument {name!r}")
    if not isinstance(params, Params):
        raise ParamsError(f"params must be a Params, such as Params(max_tokens=20); got {params!r}")


def _expect(name: str, holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {rule}; got {value!r}")
