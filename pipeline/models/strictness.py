"""torch's switch for deterministic kernels, which is one for all threads, and whose turn it is to set it.

In a deterministic run three kinds of work want three settings:

- `ordered`: a forward pass uses deterministic kernels where torch has them. An operation without one warns, because
  torch also names some that it only cannot prove deterministic, such as a sum along rows;
- `strict`: a backward pass allows no other operation. Attention takes its deterministic kernel only there;
- `unswitched`: decoding is deterministic by itself, without the switch. With the switch, writing a key becomes a sort.

An engine may generate in a thread of its own meanwhile, so each kind takes its turn with the switch. Turns are given in
the order in which threads asked: a lock that its last owner may take again at once would let the others wait for long.
Outside of any turn torch is as in `ordered`. In a run that is not deterministic nothing waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Setting = Literal["ordered", "strict", "unswitched"]


class _Turns:
    """Who may set the switch: the first of a queue of threads."""

    def __init__(self) -> None:
        self.is_on = False
        """The run is deterministic."""
        self.setting: Setting = "ordered"
        self._queue: deque[int] = deque()
        self._changed = threading.Condition()

    def is_mine(self) -> bool:
        """True if this thread has the turn."""
        return bool(self._queue) and self._queue[0] == threading.get_ident()

    def take(self) -> None:
        """Wait for the turn, behind the threads that wait already."""
        me = threading.get_ident()
        with self._changed:
            self._queue.append(me)
            try:
                self._changed.wait_for(lambda: self._queue[0] == me)
            except BaseException:  # Ctrl-C: who comes after must not wait for this thread
                self._leave(me)
                raise

    def end(self) -> None:
        """Let the next thread have the turn."""
        with self._changed:
            self._leave(threading.get_ident())

    def pass_on(self) -> None:
        """Let each thread that waits have one turn, then have it again."""
        with self._changed:  # at once: a thread that takes turns without a pause gets no second one
            self.end()
            self.take()

    def _leave(self, thread: int) -> None:
        self._queue.remove(thread)
        self._changed.notify_all()

    def set(self, setting: Setting) -> None:
        """Set torch's switch."""
        self.setting = setting
        torch.use_deterministic_algorithms(setting != "unswitched", warn_only=setting == "ordered")


_TURNS = _Turns()


@contextmanager
def deterministic() -> Iterator[None]:
    """Within the block the run is deterministic. No other thread may compute as it begins and as it ends."""
    was_on = torch.are_deterministic_algorithms_enabled()
    was_lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # its attribute is a property, which its type does not show
    filled, was_ours = memory.fill_uninitialized_memory, _TURNS.is_on
    try:
        _TURNS.is_on = True
        _TURNS.set("ordered")
        memory.fill_uninitialized_memory = False  # nothing here reads memory before it is written
        yield
    finally:
        _TURNS.is_on = was_ours
        torch.use_deterministic_algorithms(was_on, warn_only=was_lenient)
        memory.fill_uninitialized_memory = filled


def is_deterministic() -> bool:
    """True in a deterministic run, whatever the switch is now."""
    return _TURNS.is_on


@contextmanager
def turn(setting: Setting) -> Iterator[None]:
    """Within the block torch's switch has that setting, and no thread changes it."""
    if not _TURNS.is_on:
        yield
        return
    is_outermost = not _TURNS.is_mine()
    if is_outermost:
        _TURNS.take()
    before = _TURNS.setting
    try:
        _TURNS.set(setting)
        yield
    finally:
        if _TURNS.is_mine():  # not if it was interrupted while others had the turn
            _TURNS.set(before)
            if is_outermost:
                _TURNS.end()


def give_way() -> None:
    """Let each thread that waits for the turn have it once, if this thread has it."""
    if _TURNS.is_on and _TURNS.is_mine():
        before = _TURNS.setting
        _TURNS.set("ordered")
        _TURNS.pass_on()
        _TURNS.set(before)


@contextmanager
def given_away() -> Iterator[None]:
    """Within the block other threads may have the turn that this thread has, if it has one; then this waits for it."""
    if not _TURNS.is_on or not _TURNS.is_mine():
        yield
        return
    before = _TURNS.setting
    _TURNS.set("ordered")
    _TURNS.end()
    try:
        yield
    finally:
        _TURNS.take()
        _TURNS.set(before)
