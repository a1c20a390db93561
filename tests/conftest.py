"""Fixtures that every folder of tests may use."""

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from hypothesis import settings

from tests.warm import FOLDER, wait_for_no_disk

# before torch or prefect are loaded by any test
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # more processes than cores: threads of one would wait for those of another
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else torch's compiler starts a process per core

settings.load_profile("ci")  # the same examples everywhere, and no limit of time, which a busy machine exceeds
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
UNIT, TEST, NIGHTLY = "not run", "not nightly", "nightly"
"""What `make test-unit`, `make test` and `make nightly` want: expressions of marks."""
MINUTES = {TEST: "8 to 20"}
"""Measured on two quiet cores: 8 of an AMD EPYC of 2024, 13 of an Intel Xeon of 2.1 GHz, 20 of an EPYC of 2021."""
ROOM, FULL = {TEST: 2000, NIGHTLY: 2000}, 50
"""Megabytes that all tests need for temporary files; and so few that what fails may fail for want of room."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WHOLE_FILE = {
    UNIT: re.compile(r"^pytestmark = .*\brun\b", re.M),
    TEST: re.compile(r"^pytestmark = .*\bnightly\b", re.M),
}
"""Files of which an expression wants no test."""


def pytest_configure(config):
    """Make the folder of what tests share (`tests.stages.start`, `tests.warm`), once for all processes.

    And hear the interrupts that tests send: a shell lets what it starts in the background ignore them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wait_for_no_disk()
    if FOLDER not in os.environ:
        try:
            lack = full_disk(tempfile.gettempdir(), ROOM.get(config.option.markexpr, FULL))
        except FileNotFoundError as exc:  # no file can be written there, nor in any other usual place
            lack = f"The disk is full: {exc.strerror}"
        if lack:
            raise pytest.UsageError(lack)
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="verizero-models-")
        # torch finds compiled code again by its source alone, so what another run left may be for another CPU
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"

        def remove():
            del os.environ[FOLDER]
            shutil.rmtree(folder)

        config.add_cleanup(remove)


def full_disk(folder, room):
    """Return the words for a folder of temporary files that has less than `room` megabytes left."""
    if (free := shutil.disk_usage(folder).free >> 20) >= room:
        return None
    return (
        f"The disk is full: {folder} has {free} MB left, and the tests need {room} for temporary files. Make room, or "
        "name another folder: TMPDIR=/a/folder make test"
    )


def pytest_exception_interact(node):
    """Stop where a test has failed and the disk is full: all others would fail too, and none would say why."""
    if lack := full_disk(os.path.dirname(os.environ[FOLDER]), FULL):
        node.session.shouldstop = lack


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium. Without WebGL, of which Prefect draws its graphs: in software that takes a whole core."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: install the package chromium (Debian: apt-get install chromium)")
    with sync_playwright() as play:
        words = ["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"]
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=words)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def threads():
    """The threads of environments."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def default_sandbox():
    """Behind the test, programs run as where nobody has settled how."""
    from verizero.sandbox.settings import SandboxSettings, configure

    yield
    configure(SandboxSettings())


@pytest.fixture(scope="module", autouse=True)
def end_default_group():
    """End the default process group after each file: FSDP and DeepSpeed on one rank make one and leave it.

    DeepSpeed leaves variables of launchers too, by which other libraries would wait for further ranks.
    Freeze again what vLLM unfreezes at its end: each further collection would look through all of it for a second.
    """
    before = {name: os.environ.get(name) for name in OF_LAUNCHERS}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "vllm" in sys.modules and not gc.get_freeze_count():  # to count takes half a second: it looks at each object
        gc.freeze()
    if "torch.distributed" in sys.modules and (dist := sys.modules["torch.distributed"]).is_initialized():
        dist.destroy_process_group()


@cache
def imports_vllm(file):
    """True for a file whose tests import vLLM into their process."""
    return re.search(r"^pytestmark = .*\bneeds_vllm\b", file.read_text(encoding="utf-8"), re.MULTILINE) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give all files that import vLLM to one process, as the import takes ten seconds of a core."""
    from xdist.scheduler.loadfile import LoadFileScheduling

    class VllmTogether(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "vllm" if imports_vllm(config.rootpath / file) else file

    return VllmTogether(config, log)


@pytest.hookimpl(optionalhook=True)  # without xdist there is none
def pytest_xdist_auto_num_workers(config):
    """Two processes more than there are cores: tests of servers and killed runs wait a third of their time."""
    waits = config.option.markexpr != UNIT
    return num_cores() + 2 * waits


def num_cores():
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pytest_ignore_collect(collection_path, config):
    """True for files of which no test is wanted: to import them costs seconds."""
    wanted = config.option.markexpr
    if wanted not in (*WHOLE_FILE, NIGHTLY) or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_unwanted = "mark.nightly" not in text if wanted == NIGHTLY else WHOLE_FILE[wanted].search(text) is not None
    return True if is_unwanted else None


def pytest_collectstart():
    """Collect no garbage while modules load: what they make stays, and to look through it costs seconds."""
    gc.disable()


def pytest_collection_finish():
    """Collect garbage from here on, but seldom, and not among what the modules and the collected tests hold."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)  # the default, 700 new objects, costs a tenth of the tests' time


def pytest_collection_modifyitems(items):
    """Files of real engines and whole runs first, those with the fewest and so longest tests before all.

    A file stays in one process, and a long one that begins last is waited for by all others.
    """
    engines = {item.path for item in items if item.get_closest_marker("run")}
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in engines, count[item.path] if item.path in engines else 0))


def pytest_sessionstart(session):
    """Say at once about how long the tests take where that was measured: to collect them takes half a minute."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "PYTEST_XDIST_WORKER" not in os.environ and (minutes := MINUTES.get(session.config.option.markexpr)):
        reporter.write_line(
            f"About {minutes} minutes on two cores that do nothing else, and this process has {num_cores()}. "
            "First each process collects all tests, half a minute."
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids):
    """Say once how many tests there are."""
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    if node.gateway.id == "gw0" and reporter is not None:
        reporter.write_line(f"{len(ids)} tests")


@pytest.hookimpl(trylast=True)  # behind the slowest tests
def pytest_terminal_summary(terminalreporter, config):
    """Say what was left out, and why: a line for each reason."""
    why = {}
    for report in terminalreporter.getreports("skipped"):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        why.setdefault(reason, Counter())[report.nodeid.partition("::")[0].rpartition("/")[0]] += 1
    lines = [
        f"{(n := rooms.total())} test{'s' * (n > 1)} of {', '.join(sorted(rooms))}: {reason}"
        for reason, rooms in sorted(why.items())
    ]
    if config.option.markexpr == TEST:
        lines.append(f"{count_nightly(config.rootpath / 'tests')} test functions with the mark nightly: make nightly")
    if config.option.markexpr == UNIT:
        lines.append("the tests with the mark run: make test")
    for line in ["What was left out:", *lines] if lines else ():
        terminalreporter.write_line(line if line.endswith(":") else f"  {line}")


def count_nightly(tests):
    """How many functions, or cases of one, have the mark."""
    count = 0
    for path in tests.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        every, one = r"^\s*(?:async )?def test_", r"\bmark\.nightly\b"
        count += len(re.findall(every if WHOLE_FILE[TEST].search(text) else one, text, re.MULTILINE))
    return count
