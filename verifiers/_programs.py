"""Code that verifiers of programs share: find the program, and run equal pairs of program and tests only once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from verizero.pipeline.fences import blocks_in, program_among
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import Answer, after_thinking, last_tag, program_places

Work = TypeVar("Work")


def program_of(attempt: Attempt, language: str = "python", names: Sequence[str] = ()) -> Answer:
    """Return the program in a response: the last closed fence of that language, else one without a tag, else all of it.

    `names` are what the tests call: the fence that defines them wins over later ones (usage examples follow solutions).
    An unclosed fence or a fence of other languages only is no answer.
    """
    part = after_thinking(attempt)
    if part.text is None:
        return part
    tagged = last_tag(part.text, "answer", program_places(part.text))
    text = tagged.text if tagged.text is not None else part.text
    blocks, left_open = blocks_in(text)
    program = program_among(blocks, language, names)
    if program is not None:
        return Answer(program, "fenced")
    if left_open:
        return Answer(None, "unclosed_fence")
    if blocks:
        others = ", ".join(dict.fromkeys(b.language for b in blocks if b.language))
        return Answer(None, f"no_{language}_block: {f'fences of {others:.80}' if others else 'empty fences'}")
    if attempt.truncated:
        return Answer(None, "truncated")
    return Answer(text.removeprefix("\ufeff"), "bare")


def grade_distinct(
    attempts: Sequence[Attempt],
    prepare: Callable[[Attempt], Work | Verdict],
    key: Callable[[Work], str],
    run: Callable[[list[Work]], Sequence[Verdict]],
) -> list[Verdict]:
    """Return one verdict per attempt, in order. `run` grades all work together; work with equal keys runs once.

    `prepare` returns the work of an attempt, or its verdict if there is nothing to run. A broken reference is
    "verifier_error" for its own attempt only.
    """
    verdicts: list[Verdict | None] = []
    keys: list[str] = []
    distinct: dict[str, Work] = {}
    for attempt in attempts:
        try:
            work = prepare(attempt)
            name = "" if isinstance(work, Verdict) else key(work)
        except Exception as exc:  # whatever it is, it is of this row and of no other
            work = Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
        if isinstance(work, Verdict):
            verdicts.append(work)
            continue
        keys.append(name)
        distinct.setdefault(name, work)
        verdicts.append(None)
    graded = dict(zip(distinct, run(list(distinct.values())) if distinct else [], strict=True))
    rest = iter(keys)
    return [graded[next(rest)] if verdict is None else verdict for verdict in verdicts]


MODULES = frozenset((
    "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools", "json",
    "math", "operator", "random", "re", "statistics", "string", "sys", "typing",
))  # fmt: skip
FROM = {
    "typing": "Any Callable DefaultDict Deque Dict FrozenSet Generator Iterable Iterator List Mapping NamedTuple "
    "Optional Sequence Set Tuple Type TypeVar Union",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "bisect": "bisect_left bisect_right insort insort_left insort_right",
    "functools": "cache cmp_to_key lru_cache partial reduce wraps",
    "itertools": "accumulate chain combinations combinations_with_replacement cycle groupby islice pairwise "
    "permutations product repeat starmap takewhile zip_longest",
    "math": "ceil comb cos exp factorial floor gcd hypot inf isqrt lcm log log10 log2 nan perm pi prod sin sqrt tan",
    "string": "ascii_letters ascii_lowercase ascii_uppercase",
    "copy": "deepcopy",
    "dataclasses": "dataclass field",
}
"""Names by the module that they are of. None is a built-in's, as `math.pow` would be."""
OWNERS = {name: module for module, names in FROM.items() for name in names.split()}
WORDS = re.compile(r"[A-Za-z_]\w*")
FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)


def missing_imports(program: str, called: Sequence[str] = ()) -> str:
    """Return imports of the names above that a program mentions. Its own imports and definitions replace them.

    `called`: functions that the tests call; a library's function of that name would pass for the program's.
    """
    words = set(WORDS.findall(program)) - set(called)
    lines = [f"import {name}" for name in sorted(words & MODULES)]
    return "\n".join([*lines, *(f"from {OWNERS[name]} import {name}" for name in sorted(words & OWNERS.keys()))])


def with_prelude(program: str, *parts: str) -> str:
    """Return the program behind sources that run before it. All `from __future__` lines come first."""
    if not any(part.strip() for part in parts):
        return program
    whole = "\n".join([*(part for part in parts if part.strip()), program])
    future = sorted(set(FUTURE.findall(whole)))
    return "\n".join([*future, FUTURE.sub("", whole) if future else whole])
