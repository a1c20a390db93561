"""Hostile rows among right and wrong ones: whatever a program does, no other row's line changes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

_ALL = "import fcntl, os\nfor fd in range(64):\n  try: {}\n  except OSError: pass\nprint('left')"
HOSTILE = [
    _ALL.format("fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)"),
    _ALL.format("os.ftruncate(fd, 0); os.pwrite(fd, b'left' * 99_999, 9); fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 15)"),
    _ALL.format("fcntl.lockf(fd, fcntl.LOCK_EX); fcntl.flock(fd, fcntl.LOCK_EX); os.lseek(fd, 1 << 40, 0)"),
    "import os, signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nos.chmod('.', 0)\nos.kill(os.getpid(), 40)",
    "import os, struct\nr = struct.pack('<IBQQI', 0, 0, 9, 9, 9) * 9\nfor fd in range(3, 64):\n"
    "  try: os.write(fd, r + b'\\xff' * 10 ** 6)\n  except OSError: pass\nos._exit(0)",
    "import threading, os\nf = lambda: [os.pwrite(fd, b'left', 0) for _ in iter(int, 1) for fd in range(7)]\n"
    "for _ in range(9): threading.Thread(target=f, daemon=True).start()\nos.abort()",
    "import os\nfor i in range(3000):\n  try: os.mkdir('d'); os.chdir('d'); open(f'{i}\\udc80', 'w').write('left')\n"
    "  except OSError: break\nos.kill(0, 9)",
    "import sys\nsys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 4): x = [x]\n"
    "f = lambda *a: {10 ** 5000: 1j, 0.5: x, **{k * (2 ** 61 - 1): 0 for k in range(999)}}\nprint(f())\ndel x",
]
"""Programs that reach for what runs might share: flags, bytes, locks, timers, records, threads, files, values."""


def _row(number: int, program: str) -> str:
    tests = [{"input": f"{number} {i}\n", "output": f"{number * 3 + i}\n"} for i in range(2)]
    if number % 3 == 0:
        tests = [{"fn": "f", "args": [number, i], "expected": [number * 3 + i, str(number)]} for i in range(2)]
    response = f"```python\n{program}\n```"
    return json.dumps({"id": number, "verifier": "code", "reference": {"tests": tests}, "response": response})


def _honest(number: int) -> str:
    """Return a program that is right, wrong, or raises, by its number."""
    more = ("", "", "", " + 1", " / 0")[number % 5]
    if number % 3 == 0:
        return f"def f(a, b):\n    return [a * 3 + b{more}, str(a)]"
    return f"import sys\na, b = map(int, input().split())\nprint('note', file=sys.stderr)\nprint(a * 3 + b{more})"


def _lines(rows: list[str], folder: Path, batch: int) -> dict[int, str]:
    """Return each row's line, by its id, as the command writes it."""
    file = folder / "rows.jsonl"
    file.write_text("\n".join(rows) + "\n")
    command = [sys.executable, "-m", "verizero.pipeline.cli", "verify", str(file), "--batch", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["id"]: line for line in done.stdout.splitlines()}


@pytest.mark.integration
@pytest.mark.slow
def test_eight_hostile_rows_change_no_line_of_32_others(tmp_path: Path) -> None:
    """In one batch, and in many."""
    honest = {number: _row(number, _honest(number)) for number in range(32)}
    hostile = {32 + place: _row(32 + place, program) for place, program in enumerate(HOSTILE)}
    mixed = list((honest | hostile).values())
    random.Random(3).shuffle(mixed)
    alone = _lines(list(honest.values()), tmp_path, 40)
    scores = {number: json.loads(line)["score"] for number, line in alone.items()}
    assert scores == {number: float(number % 5 < 3) for number in honest}
    for batch in (40, 7):
        together = _lines(mixed, tmp_path, batch)
        assert {number: together[number] for number in honest} == alone
        assert {json.loads(together[number])["score"] for number in hostile} == {0.0}
        assert "sandbox_error" not in "".join(together.values())
