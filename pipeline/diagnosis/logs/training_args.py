"""Read the arguments in `training_args.bin` without running anything of it.

The file is a zip archive with a pickle, which TRL and transformers write next to each checkpoint. A pickle is a
program for a small stack machine. `pickletools` takes it apart; here its texts, numbers, lists and dictionaries are put
together again, and every class or function that it names stays a name. Nothing is imported or called.
"""

from __future__ import annotations

import pickletools
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BYTES = 5_000_000
MARK = object()


@dataclass
class Named:
    """A class or function that the pickle names, and what would be given to it."""

    name: str
    arguments: Any = None
    state: dict[str, Any] = field(default_factory=dict)


def arguments_of(path: Path) -> dict[str, Any]:
    """Return the arguments that are numbers, texts, truth values, or lists of them; empty if there are none."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
            if archive.getinfo(name).file_size > MAX_BYTES:
                return {}
            content = archive.read(name)
        top = _built(content)
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError, IndexError, KeyError, TypeError):
        return {}
    return {k: _plain(v) for k, v in top.state.items() if _is_plain(v)} if isinstance(top, Named) else {}


def _built(content: bytes) -> Any:
    """Return what the pickle would build, with names in the place of classes and of what functions would return."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack[-1]
        if name == "MARK":
            stack.append(MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(argument or 0)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(argument or 0)])
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in ("GLOBAL", "BINPERSID"):
            stack.append(Named(str(argument or stack.pop())))
        elif argument is not None:
            stack.append(argument)
        else:
            _apply(name, stack)
    raise ValueError("the pickle has no end")


CONSTANTS: dict[str, Any] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_TUPLE": tuple,
}


def _apply(name: str, stack: list[Any]) -> None:
    """Do what an opcode without an argument does to the stack."""
    if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        size = int(name[-1])
        stack[-size:] = [tuple(stack[-size:])]
    elif name in ("TUPLE", "LIST", "FROZENSET", "DICT"):
        items = _to_mark(stack)
        stack.append(dict(zip(items[::2], items[1::2], strict=True)) if name == "DICT" else items)
    elif name in ("SETITEMS", "SETITEM"):
        items = _to_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        if isinstance(stack[-1], dict):
            stack[-1].update((k, v) for k, v in zip(items[::2], items[1::2], strict=True) if isinstance(k, str))
    elif name in ("APPENDS", "ADDITEMS", "APPEND"):
        items = [stack.pop()] if name == "APPEND" else _to_mark(stack)
        if isinstance(stack[-1], list):
            stack[-1].extend(items)
    elif name == "STACK_GLOBAL":
        stack[-2:] = [Named(f"{stack[-2]}.{stack[-1]}")]
    elif name in ("REDUCE", "NEWOBJ"):
        made = stack.pop()
        stack[-1] = Named(getattr(stack[-1], "name", ""), made)
    elif name == "BUILD":
        state = stack.pop()
        if isinstance(stack[-1], Named) and isinstance(state, dict):
            stack[-1].state.update(state)
    elif name == "POP":
        stack.pop()
    else:
        raise ValueError(f"the opcode {name} is not known here")


def _to_mark(stack: list[Any]) -> list[Any]:
    """Take everything above the last mark from the stack, and the mark."""
    place = len(stack) - 1 - stack[::-1].index(MARK)
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _plain(value: Any) -> Any:
    """Return a value; of a member of an enumeration the text that names it."""
    return value.arguments[0] if isinstance(value, Named) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Named):
        return isinstance(value.arguments, tuple) and len(value.arguments) == 1 and isinstance(value.arguments[0], str)
    if isinstance(value, list | tuple):
        return all(isinstance(part, int | float | str | bool) for part in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, int | float | str | bool)
