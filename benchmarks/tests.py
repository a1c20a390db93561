"""CPU seconds by test function, with all processes that a test starts, as a table in tests.md.

    python benchmarks/tests.py                      all tests
    python benchmarks/tests.py -m "not nightly"     any arguments of pytest

Ends with status 1 if tests fail, or if those of a mark take more than its budget. The budgets are CPU seconds of the
machine that the page names: another CPU may take half as many again. Each process of pytest-xdist joins a control group
of its own, which counts what its children compute too, also those that outlive their test. So it needs root on Linux.
What pytest imports and collects is a row of its own.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FOLDER = "VERIZERO_TESTS_CPU"
"""Variable that names the folder into which each process writes its rows: name, CPU seconds, mark."""
BUDGETS = {"unit": 240, "run": 600, "nightly": 900}
"""CPU seconds that all tests of a mark may take; `unit` are those without one."""
SHOWN = 40
GROUPS = Path("/sys/fs/cgroup/cpuacct") if Path("/sys/fs/cgroup/cpuacct").is_dir() else Path("/sys/fs/cgroup")


class Group:
    """The control group of this process."""

    def __init__(self) -> None:
        self._folder = GROUPS / f"verizero-tests-{os.getpid()}"
        self._folder.mkdir()
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float:
        """CPU seconds of all its processes since it was made."""
        if (usage := self._folder / "cpuacct.usage").exists():
            return int(usage.read_text()) / 1e9
        words = (self._folder / "cpu.stat").read_text().split()
        return int(words[words.index("usage_usec") + 1]) / 1e6


class Counted:
    """A plugin of pytest: one row a test."""

    def __init__(self) -> None:
        self._group = Group()

    def write(self, name: str, seconds: float, mark: str) -> None:
        with (Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps([name, seconds, mark]) + "\n")

    def pytest_collection_finish(self) -> None:
        self.write("import and collection", self._group.seconds(), "")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._group.seconds()
        result = yield
        mark = next((mark for mark in ("nightly", "run") if item.get_closest_marker(mark)), "unit")
        self.write(item.nodeid, self._group.seconds() - before, mark)
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Count in each process that runs tests."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.pluginmanager.register(Counted())


def budget(mark: str, seconds: float) -> str:
    """Return the budget of a mark as a cell of the table, which says if it is exceeded."""
    allowed = BUDGETS.get(mark)
    return "" if allowed is None else f"{allowed}{', EXCEEDED' if seconds > allowed else ''}"


def table(folder: Path) -> str:
    """The rows as a page: by mark, by room, and the functions that take most."""
    marks, rooms = Counter[str](), Counter[str]()
    functions: dict[tuple[str, str], list[float]] = defaultdict(list)
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            name, seconds, mark = json.loads(line)
            marks[mark or name] += seconds
            if mark:
                rooms[re.split(r"/[^/]*\.py|\.py", name)[0]] += seconds
                functions[name.split("[")[0], mark].append(seconds)
    total = sum(marks.values())
    largest = sorted(functions.items(), key=lambda item: -sum(item[1]))[:SHOWN]
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return "\n".join(
        [
            "# CPU seconds of the tests",
            "",
            f"Written by `python benchmarks/tests.py`, on {os.cpu_count()} cores,{cpu.partition(':')[2]}. "
            f"{sum(map(len, functions.values()))} tests, {len(functions)} functions, {total:.0f} CPU seconds in all, "
            f"of which {sum(sum(each) for _, each in largest) / total:.0%} in the {len(largest)} functions below.",
            "",
            "| mark | CPU seconds | budget |",
            "|---|---|---|",
            *(f"| {mark} | {seconds:.0f} | {budget(mark, seconds)} |" for mark, seconds in marks.most_common()),
            "",
            "| function | mark | cases | CPU seconds |",
            "|---|---|---|---|",
            *(f"| `{name}` | {mark} | {len(each)} | {sum(each):.1f} |" for (name, mark), each in largest),
            "",
            "| folder or file | CPU seconds |",
            "|---|---|",
            *(f"| {room} | {seconds:.0f} |" for room, seconds in rooms.most_common()),
            "",
        ]
    )


def main() -> int:
    if not os.access(GROUPS, os.W_OK):
        print(f"{GROUPS} cannot be written: CPU seconds are counted by control groups, which root makes on Linux")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        code = subprocess.call(
            [
                *(sys.executable, "-m", "pytest", "-p", "benchmarks.tests"),
                *("-n", "auto", "--maxprocesses", "4", "--dist", "loadfile", "--no-loadscope-reorder"),
                *sys.argv[1:],
            ],
            cwd=HERE.parent,
            env=os.environ | {FOLDER: folder},
        )
        page = table(Path(folder))
    for group in GROUPS.glob("verizero-tests-*"):
        group.rmdir()
    (HERE / "tests.md").write_text(page)
    print(page)
    return code or "EXCEEDED" in page


if __name__ == "__main__":
    sys.exit(main())
