"""What every test needs: no telemetry, so that no run waits for a network; and a chat server for those who ask."""

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"


@pytest.fixture
def chat_server() -> Iterator[Any]:
    """A running `ChatServer` with no limit and no script, which the test changes as it likes."""
    # Imported here, so that the tests that need none do not load a client for it.
    with import_module("chat_server").ChatServer() as server:
        yield server
