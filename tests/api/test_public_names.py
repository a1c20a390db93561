"""The public names of `verizero`: few, documented, and with the arguments that programs of users give."""

import inspect
import re

import pytest

import verizero as vz

SIGNATURES = {
    "Event": "(stage, round, step, row, _read_groups)",
    "OwnLoop": "(session)",
    "OwnLoop.end_step": "(self)",
    "OwnLoop.generate": "(self, prompts)",
    "OwnLoop.next_prompts": "(self, count=None)",
    "OwnLoop.publish": "(self)",
    "OwnLoop.select": "(self, groups)",
    "OwnLoop.update": "(self, groups)",
    "OwnLoop.verify": "(self, generated)",
    "OwnLoop.with_rewards": "(self, groups, reward)",
    "Attempt": "(response, reference, prompt='', truncated=False, messages=(), row=None, response_ids=())",
    "TrainedRun": "(folder)",
    "TrainedRun.chat": "(self, message, system=None)",
    "TrainedRun.diagnose": "(self)",
    "TrainedRun.push": "(self, name, private=True)",
    "TrainedRun.train": "(self, steps=None, *, resume='auto', quiet=False, callbacks=())",
    "TrainedRun.samples": "(self, wrong=None, stage=None)",
    "Verdict": "(status, score=0.0, reason='', extracted=None, seconds=0.0, reward=None, right=None, parts=(), "
    "steps=())",
    "evaluate": "(model, data=None, *, quiet=False, **arguments)",
    "open": "(model, data=None, *, resume='auto', quiet=False, callbacks=(), **arguments)",
    "train": "(model, data=None, *, reward=None, evaluation=None, name=None, algorithm=None, steps=None, weights=None, "
    "success=None, output=None, resume='auto', quiet=False, callbacks=(), **fields)",
    "try_out": "(model, data=None, *, prompts=4, samples=4, **arguments)",
    "verifier": "(function=None, /, *, name=None, batch=False, reads=None)",
}
"""What users call. A change here changes their programs: say it in the commit."""
PROPERTIES = {
    *(f"Event.{name}" for name in ("groups", "kind", "metrics")),
    *(f"OwnLoop.{name}" for name in ("done", "num_missing", "round", "run", "stage", "step")),
    *(f"TrainedRun.{name}" for name in ("metrics", "model", "report", "results", "summary")),
    *(f"Verdict.{name}" for name in ("is_correct", "is_infrastructure", "is_left_out")),
}


def members(name):
    """The public methods and properties of a class, by dotted name."""
    owner = getattr(vz, name)
    for member in dir(owner) if inspect.isclass(owner) else ():
        value = inspect.getattr_static(owner, member)
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield f"{name}.{member}", value


PUBLIC = dict(pair for name in vz.__all__ for pair in ((name, getattr(vz, name)), *members(name)))


def is_called(value):
    """True for functions and classes; nobody outside makes an error of ours."""
    return callable(value) and not (inspect.isclass(value) and issubclass(value, Exception))


def plain_signature(function):
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))


def test_the_names_and_their_arguments_are_those_that_users_call():
    assert {name: plain_signature(value) for name, value in PUBLIC.items() if is_called(value)} == SIGNATURES
    assert {name for name, value in PUBLIC.items() if isinstance(value, property)} == PROPERTIES
    assert PUBLIC.keys() - SIGNATURES.keys() - PROPERTIES == {"STOP", "VerizeroError"}
    assert set(vz.__all__) <= set(dir(vz))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_says_what_it_is_what_it_takes_and_what_it_raises(name):
    value = PUBLIC[name]
    text = inspect.getdoc(value) or ""
    has_fields = hasattr(value, "__dataclass_fields__")  # each has its own docstring in the source
    if inspect.isclass(value) and not has_fields and "__init__" in vars(value):
        text += inspect.getdoc(value.__init__) or ""
    first = text.split("\n\n")[0]
    assert len(first.split()) >= 4, text
    if has_fields or not is_called(value):
        return
    arguments = [p.name for p in inspect.signature(value).parameters.values() if p.name != "self"]
    assert [a for a in arguments if not re.search(rf"\b{a}\b", text)] == []
    assert not arguments or "Raises: " in text


def test_a_wrong_name_lists_the_public_ones():
    with pytest.raises(AttributeError, match="no attribute 'tran'; public names: STOP, Attempt, Event, OwnLoop"):
        vz.tran  # noqa: B018
