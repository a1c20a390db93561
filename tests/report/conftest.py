"""A finished run, made up but whole."""

import pytest

from tests.report.runs import make_run
from verizero.pipeline.report.page import build_page


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """The folder of the run, with its page and its summary."""
    run_dir = make_run(tmp_path_factory.mktemp("runs") / "demo")
    build_page(run_dir)
    return run_dir
