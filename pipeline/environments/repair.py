"""A program to write, with a few tries: it is run on tests in the sandbox, and the first that fails is shown.

The row's answer is {"tests": [{"fn", "args", "expected"} or {"input", "output"}, ..], "fn"?}. An answer is the message
after its thinking, or the program in its fences. Each try is run afresh, and the last verdict counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from verizero import sandbox
from verizero.pipeline.environments.base import EnvironmentParams, Reply, Start, answer_of
from verizero.pipeline.environments.tools._programs import run
from verizero.pipeline.errors import DataError
from verizero.pipeline.fences import blocks_in, program_among
from verizero.pipeline.types import Message, Prompt, Verdict
from verizero.sandbox.results import MOST, OVER_TIME

EXAMPLE = Prompt(
    "repair/1",
    "f(0)=7",
    "environment",
    {"fn": "f", "tests": [{"args": [x], "expected": 3 * x + 7} for x in range(1, 5)]},
)
MAX_SHOWN = 200


class Params(EnvironmentParams):
    """The tries, the limits of a test, and what is shown of one that fails."""

    tries: int = Field(3, ge=1)
    feedback: bool = Field(True, description="false: a wrong program is answered with `words` alone")
    words: str = Field("wrong, try again", min_length=1, description="where there is no test to show")
    brief: bool = Field(
        False, description="an error is the word error, not its message, which small models have no characters for"
    )
    cpu_s: float = Field(2.0, gt=0, le=MOST["cpu_s"], description="seconds of CPU time of a test")
    wall_s: float = Field(10.0, gt=0, le=MOST["wall_s"], description="seconds of a test, for programs that sleep")
    memory_mib: int = Field(256, ge=1, le=MOST["memory_mib"])

    def languages(self) -> frozenset[str]:
        """Return Python."""
        return frozenset({"python"})


class Repair:
    """One program to write."""

    def __init__(self, params: Params, tests: list[dict[str, Any]], mode: sandbox.Mode) -> None:
        """`tests` are in the sandbox's form for `mode`."""
        self.params, self.tests, self.mode, self.left = params, tests, mode, params.tries

    def start(self) -> Start:
        """Show the row's question."""
        return Start()

    def step(self, message: Message) -> Reply:
        """Run the program. Raises: EnvironmentFailed if the sandbox fails."""
        self.left -= 1
        answer = answer_of(message)
        names = [test["fn"] for test in self.tests] if self.mode == "function" else []
        program = (program_among(blocks_in(answer)[0], "python", names) or answer).strip()
        number, result = self._first_failure(program) if program else (0, None)
        if program and result is None:
            return Reply(done=True, outcome=Verdict("graded", 1.0, "passed", program))
        if self.left == 0:
            return Reply(done=True, outcome=_refused(program, number, result))
        words = self.params.words if result is None or not self.params.feedback else self._shown(number, result)
        return Reply((Message("user", words),))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _first_failure(self, program: str) -> tuple[int, sandbox.TestResult | None]:
        params = self.params
        limits = sandbox.Limits(params.wall_s, params.cpu_s, params.memory_mib)
        # The value that the first test returns is shown, so it is sent back, also from another machine.
        results = run(sandbox.Trial(program, self.tests, self.mode, limits, stop_on_failure=True))
        return next(((i, r) for i, r in enumerate(results) if not r.passed), (0, None))

    def _shown(self, number: int, result: sandbox.TestResult) -> str:
        test = self.tests[number]
        if result.status != "wrong_answer":
            last = result.error.strip().rsplit("\n", 1)[-1]
            instead = result.status.replace("_", " ")
            if result.status == "runtime_error":
                instead = "error" if self.params.brief or not last else last
        elif self.mode == "stdin":
            instead = result.stdout.strip()
        else:
            instead = _text_of(result)
        if self.mode == "stdin":
            return f"input:\n{_cut(test['input'])}\nexpected:\n{_cut(test['output'])}\ngot:\n{_cut(instead)}"
        given_to = ", ".join([*map(repr, test["args"]), *(f"{k}={v!r}" for k, v in test.get("kwargs", {}).items())])
        return f"{test['fn']}({_cut(given_to)})={_cut(repr(test['expected']))} not {_cut(instead)}"


def _text_of(result: sandbox.TestResult) -> str:
    try:
        return repr(result.value)
    except ValueError:  # Python refuses to write the decimal digits of a huge integer
        return "a number of too many digits"


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> Repair:
    """Return a new episode. Raises: DataError for a malformed reference."""
    reference = prompt.reference
    tests = reference.get("tests") if isinstance(reference, Mapping) else None
    if not isinstance(tests, list) or not tests or not all(isinstance(t, Mapping) for t in tests):
        raise DataError(f"answer.tests: expected a list of objects, got {tests!r:.80}")
    if all(isinstance(t.get("input"), str) and isinstance(t.get("output"), str) for t in tests):
        return Repair(params, [dict(t) for t in tests], "stdin")
    made = [{"fn": reference.get("fn"), **t} for t in tests]
    for number, test in enumerate(made):
        if not isinstance(test["fn"], str) or not isinstance(test.get("args"), list) or "expected" not in test:
            raise DataError(
                f"answer.tests[{number}]: expected 'args', 'expected' and 'fn', or 'input' and 'output' in all tests; "
                f"got the keys {', '.join(sorted(map(str, test)))}"
            )
    return Repair(params, made, "function")


def _refused(program: str, number: int, result: sandbox.TestResult | None) -> Verdict:
    if result is None:
        return Verdict("no_answer", reason="empty")
    last = result.error.strip().rsplit("\n", 1)[-1]
    reason = f"{result.status}: test {number + 1}" + (f": {last}" if last else "")
    return Verdict("timeout" if result.status in OVER_TIME else "graded", 0.0, reason[:300], program, result.cpu_s)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
