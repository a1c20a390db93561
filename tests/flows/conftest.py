"""A page of the browser."""

import pytest

from tests.flows.served import page_of


@pytest.fixture
def browser(chromium):
    """A page of the browser."""
    with page_of(chromium) as page:
        yield page
