"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.warm import wait_for_no_disk

# before torch or prefect are loaded by any test
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # more processes than cores: threads of one would wait for those of another
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else torch's compiler starts a process per core

settings.load_profile("ci")  # the same examples everywhere, and no limit of time, which a busy machine exceeds
WHOLE_FILE = re.compile(r"^pytestmark = .*\bintegration\b", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of what tests share (`tests.stages.start`, `tests.warm`), once for all processes.

    And hear the interrupts that tests send: a shell lets what it starts in the background ignore them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wait_for_no_disk()
    if "VERIZERO_TEST_MODELS" not in os.environ:
        folder = os.environ["VERIZERO_TEST_MODELS"] = tempfile.mkdtemp(prefix="verizero-models-")
        # torch keeps compiled code for all times, by its source alone: it may have been compiled for another CPU
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"

        def remove() -> None:
            del os.environ["VERIZERO_TEST_MODELS"]
            shutil.rmtree(folder)

        config.add_cleanup(remove)


@pytest.fixture(scope="module", autouse=True)
def end_default_group() -> Iterator[None]:
    """End the default process group after each file: FSDP and DeepSpeed on one rank make one and leave it.

    Freeze again what vLLM unfreezes at its end: each further collection would look through all of it for a second.
    """
    yield
    if "vllm" in sys.modules and not gc.get_freeze_count():  # to count takes half a second: it looks at each object
        gc.freeze()
    if "torch.distributed" in sys.modules and (dist := sys.modules["torch.distributed"]).is_initialized():
        dist.destroy_process_group()


@cache
def imports_vllm(file: Path) -> bool:
    """True for a file whose tests import vLLM into their process."""
    return "\npytestmark = [pytest.mark.integration, needs_vllm]" in file.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all files that import vLLM to one process, as the import takes ten seconds of a core."""
    from xdist.scheduler.loadfile import LoadFileScheduling

    class VllmTogether(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "vllm" if imports_vllm(config.rootpath / file) else file

    return VllmTogether(config, log)


@pytest.hookimpl(optionalhook=True)  # without xdist there is none
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes more than there are cores: tests of servers and killed runs wait a third of their time."""
    waits = "not integration" not in config.option.markexpr
    return (os.cpu_count() or 1) + 2 * waits


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for files of integration tests alone where none of them is wanted: to import them costs seconds."""
    unwanted = config.option.markexpr == "not integration" and collection_path.match("test_*.py")
    return True if unwanted and WHOLE_FILE.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collectstart() -> None:
    """Collect no garbage while modules load: what they make stays, and to look through it costs seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but seldom, and not among what the modules and the collected tests hold."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)  # the default, 700 new objects, costs a tenth of the tests' time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of real engines and whole runs first, those with the fewest and so longest tests before all.

    A file stays in one process, and a long one that begins last is waited for by all others.
    """
    engines = {item.path for item in items if item.get_closest_marker("integration")}
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in engines, count[item.path] if item.path in engines else 0))
