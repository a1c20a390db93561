"""Appended to the program in the sandbox: makes the calls of each test in order and reports the results."""

from typing import Any


def verizero_calls(tests: list[list[tuple[str, list[Any], dict[str, Any]]]]) -> list[list[tuple[Any, ...]]]:
    """Return per test, for each (function, args, kwargs): ("value", result, args, kwargs) or ("raised", type names)."""
    results: list[list[tuple[Any, ...]]] = []
    for calls in tests:
        results.append([])
        for name, args, kwargs in calls:
            try:
                function = globals().get(name) or getattr(globals()["Solution"](), name)
                value = function(*args, **kwargs)
            except Exception as problem:
                results[-1].append(("raised", [kind.__name__ for kind in type(problem).__mro__]))
            else:
                results[-1].append(("value", value, args, kwargs))
    return results
