"""What tests of rollouts share."""

from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(scope="module")
def threads():
    """The threads of environments."""
    with ThreadPoolExecutor(4) as pool:
        yield pool
