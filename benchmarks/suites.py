"""Measure how `verizero eval` grades a suite's right answers and near misses, through an endpoint that gives them.

    python benchmarks/suites.py humaneval --data-dir FOLDER   # with HumanEval's rows as humaneval.jsonl
    python benchmarks/suites.py reasoning_gym                 # its rows are made here

A near miss of a program is the program with one change (see unit_tests.py) that plain Python refuses by the same tests.
A near miss of another answer has one character or word changed, so that the package's own scorer, called directly,
gives less than full marks. What is graded otherwise is shown. Rows for which the package knows no answer are left out.
"""

import argparse
import importlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.unit_tests import broken  # noqa: E402
from tests.commands.suites.answering import answering  # noqa: E402
from verizero.pipeline.commands.eval import evaluate_suites  # noqa: E402
from verizero.pipeline.commands.suites.asking import Loaded, load_suites  # noqa: E402
from verizero.pipeline.commands.suites.models import measured_of  # noqa: E402
from verizero.pipeline.report.progress import Progress  # noqa: E402
from verizero.pipeline.types import Prompt  # noqa: E402

Answer = tuple[str, str]
"""A right answer to a prompt, and a near miss."""


EXAMPLES = ("possible_answer", "example_correct_answer", "example_answer")
"""Keys of a task's metadata for answers that are right where others are too."""


def programs(prompt: Prompt) -> Answer | None:
    """Return the canonical program in a fence, and one that is broken."""
    reference: Any = prompt.reference
    program = str(prompt.demonstration)
    wrong, passed = broken(program, reference)
    if passed:
        print(f"  {prompt.id}: the tests pass {len(passed)} of its changes, e.g.\n    {passed[0]}")
    return f"```python\n{program}\n```", f"```python\n{wrong}\n```"


def tagged(prompt: Prompt) -> Answer | None:
    """Return the task's answer in tags, and a text near it that the package's scorer refuses; None if it knows none."""
    reference: Any = prompt.reference
    entry, name = reference["entry"], reference["dataset"]
    known = [entry["answer"], *(entry["metadata"].get(key) for key in EXAMPLES)]
    answer = next((a for a in known if a is not None), None)
    if answer is None:
        return None
    right = answer if isinstance(answer, str) else json.dumps(answer)
    score = importlib.import_module("reasoning_gym").create_dataset(name, size=1, seed=0).score_answer
    if score(answer=right, entry=entry) < 1:
        return None  # some examples are trivial, which the scorer refuses
    near = next(text for text in changed(right) if score(answer=text, entry=entry) < 1)
    return f"<answer>{right}</answer>", f"<answer>{near}</answer>"


def changed(text: str) -> Iterator[str]:
    """Yield texts near this one: another digit or letter, the last one first; a word less; a word more."""
    for place in reversed([m.start() for m in re.finditer(r"[0-9]", text)]):
        yield f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}"
    for place in reversed([m.start() for m in re.finditer(r"[A-Za-z]", text)]):
        yield f"{text[:place]}{'b' if text[place] in 'aA' else 'a'}{text[place + 1 :]}"
    yield text.rsplit(maxsplit=1)[0] if len(text.split()) > 1 else ""
    yield f"{text} 1"


ANSWERS: dict[str, Callable[[Prompt], Answer | None]] = {"humaneval": programs, "reasoning_gym": tagged}


def measure(title: str, own: Loaded, answers: dict[str, str], value: float) -> None:
    """Print how many answers are graded as they should be, and those that are not."""
    start = time.monotonic()
    with TemporaryDirectory() as folder, answering(answers.__getitem__) as model:
        (done,) = evaluate_suites(measured_of([model.url], Path(folder)), [own], [], Progress())
    (row,) = done.row.domains.values()
    others = ", ".join(prompt_id for prompt_id, mean in row["by_prompt"] if mean != value)
    graded = sum(mean == value for _, mean in row["by_prompt"])
    seconds = f"{time.monotonic() - start:.0f} s"
    print(
        f"{title}: {graded} of {row['num_prompts']} graded {value:g}, {done.row.verdicts}, {seconds}; others: {others}"
    )


def main() -> None:
    """Measure the suite that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=sorted(ANSWERS))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    (own,) = load_suites([arguments.suite], arguments.data_dir, {"limit": arguments.limit})
    both = {p.asked: made for p in own.prompts if (made := ANSWERS[arguments.suite](p)) is not None}
    print(f"{len(both)} of {len(own.prompts)} rows have a known answer")
    own = Loaded(own.suite, [p for p in own.prompts if p.asked in both])
    measure("right answers", own, {asked: right for asked, (right, _) in both.items()}, 1.0)
    measure("near misses", own, {asked: near for asked, (_, near) in both.items()}, 0.0)


if __name__ == "__main__":
    main()
