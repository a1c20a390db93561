"""Imports that answers leave out, since the places that tasks come from have them: `List[int]`, `Counter`, `inf`.

They are for functions alone. A program that reads standard input is run as it is: no judge imports anything for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
