"""What a program can send back to the process that judges it: each value costs its own test, and nothing else."""

from dataclasses import replace

import pytest

from verizero import sandbox
from verizero.pipeline.config.data import Source
from verizero.pipeline.data.prompts import load_prompts
from verizero.pipeline.host.disk import parse_json, read_jsonl
from verizero.pipeline.run.choose_checkpoint import hash_rows
from verizero.pipeline.run.data import write_rows
from verizero.pipeline.types import Attempt
from verizero.sandbox.process import order
from verizero.sandbox.worker import codec, frames
from verizero.verifiers.base import load

pytestmark = pytest.mark.run  # workers of the sandbox

FORGE = """
import os, struct
def f(x):
    value = {value}
    record = struct.pack("<IBQQI", 0, 0, 0, 0, len(value)) + value
    for fd in range(3, 16):
        try:
            data = record
            while data: data = data[os.write(fd, data):]
        except OSError:
            pass
    os._exit(0)
"""
"""A program that writes a record by itself, with any bytes as the value."""
OF_ONE_HASH = "b'[' + b','.join(b'{\"i\":\"%x\"}' % (k * (2**61 - 1)) for k in range(1, 3000)) + b']'"


def call(expected):
    return {"fn": "f", "args": [1], "expected": expected}


def test_a_value_that_cannot_be_compared_is_the_wrong_answer_of_its_own_test(pool):
    program = "n = 0\ndef f(x):\n  global n\n  n += 1\n  return 1j if x == 2 else x"
    tests = [call(1), {"fn": "f", "args": [2], "expected": 10**400}, call(1)]
    result = sandbox.run(program, tests, mode="function", pool=pool)
    assert [t.status for t in result.tests] == ["passed", "wrong_answer", "passed"]


def test_values_of_one_hash_come_back_unhashed(pool):
    pairs = OF_ONE_HASH.replace('{"i":"%x"}', '[{"i":"%x"},1]')
    for value in (f"b'{{\"s\":' + {OF_ONE_HASH} + b'}}'", f"b'{{\"d\":' + {pairs} + b'}}'"):
        (test,) = sandbox.run(FORGE.format(value=value), [call({1})], mode="function", pool=pool).tests
        assert test.status == "wrong_answer"
        assert isinstance(test.value, codec.Unhashed)
        assert len(test.value) == 2999
    right = {k * (2**61 - 1) for k in range(1, 20)}
    program = "def f(x): return {k * (2**61 - 1) for k in range(1, 20)}"
    assert sandbox.run(program, [call(right)], mode="function", pool=pool).passed


@pytest.mark.parametrize(
    "value", ["b'\"' + b'a' * (70 << 10) + b'\"'", "b'[' * (70 << 10)", "b'[' + b'1,' * (40 << 10) + b'1]'"]
)
def test_a_value_above_the_output_limit_is_refused_unread(pool, value):
    limits = sandbox.Limits(output_kib=64)
    (test,) = sandbox.run(
        FORGE.format(value=value), [call("a")], mode="function", limits=limits, pool=pool
    ).tests  # fmt: skip
    assert (test.status, test.value) == ("bad_output", None)
    assert "64 KiB" in test.error


def test_the_values_of_one_process_are_bounded_and_those_of_all_tests_are_judged(pool):
    limits = sandbox.Limits(output_kib=64)
    program = "def f(x): return 'a' * (60 << 10)"
    item = codec.encode({"fn": "f", "args": [1], "kwargs": {}})
    payload = frames.pack_payload(program.encode(), [item] * 40)
    ended = pool.use(lambda worker: worker.execute(order(frames.FUNCTION, limits, 40), payload))
    assert 2 <= len(ended.records) <= 3
    assert sandbox.run(program, [call("a" * (60 << 10))] * 10, mode="function", limits=limits, pool=pool).passed


def test_integers_of_any_length_are_graded(tmp_path):
    """In a reference that is JSON text, and in one that was parsed; on the way through a file of prompts too."""
    text = f'{{"fn_name": "f", "inputs": [[{"9" * 5000}]], "outputs": [-1{"0" * 5000}]}}'
    right, wrong = (f"```python\ndef f(x): return {said}\n```" for said in ("-x - 1", "x"))
    (tmp_path / "rows.jsonl").write_text(f'{{"id": "a", "question": "q", "answer": {text}, "verifier": "code"}}\n')
    (prompt,) = load_prompts([Source(file=str(tmp_path / "rows.jsonl"))], 0, tmp_path)
    for reference in (text, parse_json(text), prompt.reference):
        verdicts = load("code").bind().score([Attempt(right, reference), Attempt(wrong, reference)])
        assert [(v.status, v.score) for v in verdicts] == [("graded", 1.0), ("graded", 0.0)], verdicts
    write_rows(tmp_path / "written.jsonl", [prompt])
    assert read_jsonl(tmp_path / "written.jsonl")[0]["answer"] == parse_json(text)
    assert hash_rows([prompt]) != hash_rows([replace(prompt, reference={**prompt.reference, "outputs": [0]})])
