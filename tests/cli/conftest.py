"""Every test of the command line sees a terminal of 80 columns and programs that compile quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from costmodel_jax.groups import compiling_quickly


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    with compiling_quickly([]):
        yield


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
