"""Measure how `unit_tests` grades canonical answers of a data set, the same with a line broken, and how fast it is.

    python benchmarks/unit_tests.py HumanEval.jsonl.gz     # {"prompt", "canonical_solution", "entry_point", "test"}
    python benchmarks/unit_tests.py sanitized-mbpp.json    # {"code", "test_list", "test_imports"}
    python benchmarks/unit_tests.py LeetCodeDataset-v0.3.1-test.jsonl.gz --packages sortedcontainers
    python benchmarks/unit_tests.py BigCodeBench.jsonl.gz   # {"code_prompt", "canonical_solution", "test", "libs"}
    python benchmarks/unit_tests.py --speed                # a suite of ten asserts, no data

Data sets are not shipped; give a file of lines, or of one list. A broken answer is the canonical one with one change in
one line, and still Python: another operator, comparison or returned value. It is the innermost change with which plain
Python, without a sandbox, fails the tests. Changes further inside, with which they pass, are shown; so is a broken
answer that the verifier takes for right.
"""

import argparse
import ast
import copy
import gzip
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from verizero.pipeline.config.sandbox import SandboxConfig  # noqa: E402
from verizero.pipeline.scoring.sandbox_setup import use_sandbox  # noqa: E402
from verizero.pipeline.types import Attempt, Verdict  # noqa: E402
from verizero.verifiers.unit_tests import unit_tests  # noqa: E402

Row = dict[str, Any]
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a file of JSON lines, packed or not, or of one JSON list."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    rows: list[Row] = json.loads(text) if text.lstrip().startswith("[") else list(map(json.loads, text.splitlines()))
    return rows


def canonical(row: Row) -> str:
    """Return the row's right answer."""
    if "code" in row:
        return str(row["code"])
    if "completion" in row:
        return str(row["completion"])
    return str(row["code_prompt" if "code_prompt" in row else "prompt"]) + str(row["canonical_solution"])


def broken(program: str, row: Row) -> tuple[str | None, list[str]]:
    """Return the program with its innermost change that fails the row's tests in plain Python; None if there is none.

    Also return what is changed further inside, where the tests pass: many such changes are none, e.g. 2 + 2 for 2 * 2.
    """
    passed: list[str] = []
    for changed in reversed(list(_changes(program, row.get("entry_point")))):
        if not passes_plainly(changed, row):
            return changed, passed
        before = ast.unparse(ast.parse(program)).splitlines()
        passed += [line.strip() for line, old in zip(changed.splitlines(), before, strict=True) if line != old]
    return None, passed


def _changes(program: str, fn: str | None) -> Iterator[str]:
    tree = ast.parse(program)
    inside = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == fn), tree)
    for number, node in enumerate(ast.walk(inside)):
        new = copy.deepcopy(tree)
        same_place = next((n for n in new.body if isinstance(n, ast.FunctionDef) and n.name == fn), new)
        target = list(ast.walk(same_place))[number]
        if isinstance(node, ast.Return) and node.value is not None:
            target.value = ast.Tuple([ast.Constant("broken"), node.value], ast.Load())
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
            target.ops[0] = _SWAPS[type(node.ops[0])]()
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
            target.op = _SWAPS[type(node.op)]()
        else:
            continue
        yield ast.unparse(ast.fix_missing_locations(new))


def passes_plainly(program: str, row: Row) -> bool:
    """True if plain Python runs the program with its tests, in a process of its own, without an error."""
    tests = [row["test"], f"check({row['entry_point']})"] if "test" in row else row["test_list"]
    before = [row["prompt"]] if "completion" in row else row.get("test_imports", ())
    text = "\n".join([*before, program, *tests]).encode()
    try:
        return subprocess.run([sys.executable, "-I", "-"], input=text, capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def report(title: str, rows: list[Row], verdicts: list[Verdict], wanted: list[bool]) -> None:
    """Print the counts of verdicts, and those that are not as they should be."""
    right = sum(v.is_correct for v in verdicts)
    print(f"{title}: {right} of {len(verdicts)} right, {sum(wanted)} wanted", dict(Counter(v.status for v in verdicts)))
    for row, verdict, want in zip(rows, verdicts, wanted, strict=True):
        if verdict.is_correct != want or verdict.status not in ("graded", "timeout"):
            print(f"  {row.get('task_id')}: {verdict.status} {verdict.reason[:150]}")


def grade(programs: list[str], rows: list[Row]) -> list[Verdict]:
    """Return the verdicts on programs, each with its row as the reference."""
    return unit_tests.bind().score(
        [Attempt(f"```python\n{p}\n```", row) for p, row in zip(programs, rows, strict=True)]
    )


def speed(num_programs: int) -> None:
    """Print the time of a suite of ten asserts: one program after another, and all in one batch."""
    reference = {"tests": [f"assert f({i}) == {2 * i}" for i in range(10)]}
    verifier, times = unit_tests.bind(), []
    for number in range(num_programs):
        start = time.perf_counter()
        (verdict,) = verifier.score([Attempt(f"def f(x): return 2 * x + 0 * {number}", reference)])
        times.append(time.perf_counter() - start)
        assert verdict.is_correct, verdict
    start = time.perf_counter()
    verifier.score([Attempt(f"def f(x): return 2 * x - 0 * {n}", reference) for n in range(num_programs)])
    together = (time.perf_counter() - start) / num_programs
    print(
        f"ten asserts: {statistics.median(times[3:]) * 1e3:.1f} ms alone (median), {together * 1e3:.1f} ms in a batch"
    )


def main() -> None:
    """Run the benchmark that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--packages", default="", help="that programs may import, with commas: sortedcontainers,numpy")
    arguments = parser.parse_args()
    use_sandbox(SandboxConfig(packages=tuple(arguments.packages.split(",")) if arguments.packages else ()))
    if arguments.speed or arguments.file is None:
        speed(100)
        return
    rows = rows_of(arguments.file)
    report("canonical", rows, grade([canonical(row) for row in rows], rows), [True] * len(rows))
    if any("libs" in row for row in rows):
        return  # plain Python would start processes and ask the network for these
    with ThreadPoolExecutor(2) as threads:
        changed = list(threads.map(broken, map(canonical, rows), rows))
    for row, (_, passed) in zip(rows, changed, strict=True):
        if passed:
            print(f"  {row.get('task_id')}: the tests pass {passed}")
    programs = [program for program, _ in changed if program is not None]
    rows = [row for (program, _), row in zip(changed, rows, strict=True) if program is not None]
    report("broken", rows, grade(programs, rows), [False] * len(rows))


if __name__ == "__main__":
    main()
