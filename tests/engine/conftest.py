"""An engine of the tiny model, and a session of it."""

from collections.abc import Iterator

import pytest

from cold import load
from mlx_dsv4 import Engine, Session


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with load() as engine:
        yield engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with engine.session() as session:
        yield session
