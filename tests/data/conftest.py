"""What tests of the data share."""

import logging

import pytest


@pytest.fixture
def logged():
    """The messages that the part `verizero.pipeline.data` logs during the test."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("verizero.pipeline.data")
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)
