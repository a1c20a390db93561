"""One end of the link of a suite: it asks for acts on objects of the other side, and does what the other side asks.

A question and its answer are a frame each. While one side waits for its answer it does what the other asks of it: so a
program can call a function of the test that it was given. Each frame brings the changes of shared objects with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .link import Forged, Gone, Link
from .mirrors import ACTS, SWAPPED, MirrorType, Ref
from .references import References

Question = Callable[..., Any]


class Port:
    """One end of the link. `questions`: what this side does when asked, by name."""

    def __init__(self, link: Link, is_tests: bool) -> None:
        self.link = link
        self.values = self.make_values(int(is_tests), not is_tests)
        self.lock = threading.RLock()
        self.released: list[int] = []
        self.num_open = 0
        """Questions of the other side that this side has not answered yet."""
        self.was_asked = False
        """True once the last question was sent, or a part of it."""
        self.questions: dict[str, Question] = {
            "act": self._do_act, "get": getattr, "set": setattr, "delete": delattr, "call": _call,
        }  # fmt: skip

    def make_values(self, first: int, is_trusted: bool) -> References:
        """Return the values of this end."""
        return References(first, is_trusted, self)

    def extra(self) -> list[Any]:
        """Return what this side adds to each frame."""
        return []

    def take_extra(self, extra: list[Any]) -> None:
        """Take what the other side has added to a frame."""

    def failed(self, why: str) -> BaseException:
        """Return the exception for a frame that cannot be read."""
        return Forged(why)

    # To ask

    def ask(self, question: str, /, *values: Any, **named: Any) -> Any:
        """Return the other side's answer. Raises: what it raises; Gone; Forged."""
        with self.lock:
            encode = self.values.encode
            nodes = [encode(value) for value in (*values, *named.values())]
            self.was_asked = False
            try:
                self._send(["?", question, nodes, list(named), self.values.changes()])
            finally:
                self.was_asked = self.link.is_begun
            while True:
                frame = self.link.receive()
                if frame[0] == "?":
                    self.answer(frame)
                    continue
                is_raised, value = self._read_answer(frame)
                if is_raised:
                    raise value
                return value

    def _read_answer(self, frame: list[Any]) -> tuple[bool, Any]:
        try:
            sign, node, changed, kept, extra = frame
            if sign == "#":
                raise self.failed(str(node))
            value = self.values.decode(node)
            self.values.apply(changed)
            self.values.keep(kept)
            self.take_extra(extra)
            if sign == "^" and not isinstance(value, BaseException):
                raise Forged("an exception that is none")
        except (Gone, Forged, MemoryError):
            raise
        except Exception as exc:
            raise self.failed(f"what nobody can read: {type(exc).__name__}") from exc
        return sign == "^", value

    # To answer

    def answer(self, frame: list[Any]) -> None:
        """Do what a frame asks, and send the result. Raises: Gone; Forged."""
        self.num_open += 1
        try:
            reply = self._reply(frame)
        finally:
            self.num_open -= 1
        kept = self.values.drop_own()
        try:
            self._send([*reply, kept])
        except ValueError as exc:
            self._send(["#", str(exc), [], kept])

    def _reply(self, frame: list[Any]) -> list[Any]:
        """Return sign, result and changes. All that this function holds is free when it returns."""
        decode, encode = self.values.decode, self.values.encode
        try:
            _, question, nodes, names, changed, extra = frame
            values = [decode(node) for node in nodes]
            self.values.apply(changed)
            self.take_extra(extra)
            act = self.questions[question]
            split = len(values) - len(names)
            named = dict(zip(names, values[split:], strict=True))
        except (Gone, Forged, MemoryError):
            raise
        except Exception as exc:
            raise self.failed(f"what nobody can read: {type(exc).__name__}") from exc
        try:
            result = act(*values[:split], **named)
        except (Gone, Forged):
            raise
        except BaseException as exc:
            self.note_raised(exc)
            return ["^", self.values.encode_exception(exc), self.values.changes()]
        try:
            return ["!", encode(result), self.values.changes()]
        except ValueError as exc:
            return ["#", str(exc), []]

    def note_raised(self, exc: BaseException) -> None:
        """Note an exception that goes to the other side."""
        noted: BaseException | None = exc
        while noted is not None and noted.__traceback__ is not None:
            noted.__traceback__ = None  # its frames hold what the function was given
            noted = noted.__cause__ or noted.__context__

    def _send(self, frame: list[Any]) -> None:
        released, self.released = self.released, []
        self.link.send([*frame, [released, *self.extra()]])

    def _do_act(self, name: str, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        if name in SWAPPED:
            return ACTS[SWAPPED[name]](args[0], x)
        return ACTS[name](x, *args, **kwargs)

    # What mirrors ask

    def act(self, name: str, ref: Ref, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the special method `name` of the real object returns."""
        return self.ask("act", name, x, *args, **kwargs)

    def get(self, ref: Ref, x: Any, name: str) -> Any:
        """Return an attribute of the real object."""
        return self.ask("get", x, name)

    def set(self, x: Any, name: str, *value: Any) -> None:
        """Set an attribute of the real object; without a value, delete it."""
        self.ask("set" if value else "delete", x, name, *value)

    def make(self, kind: MirrorType, args: Any, kwargs: Any) -> Any:
        """Return a new instance of the real class."""
        return self.ask("call", kind, *args, **kwargs)

    def refuse(self, why: str) -> BaseException:
        """Return the exception for what cannot be done from here."""
        return TypeError(why)

    def release(self, number: int, count: int) -> None:
        """Note that nothing here refers to the real object any more."""
        self.released += (number, count)


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
