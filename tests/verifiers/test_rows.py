"""Every labelled answer gets its verdict, in any order, from any thread, twice."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby
from typing import Any

import pytest

from tests.verifiers.rows import WITHOUT_SANDBOX, Row
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import BoundVerifier, load

NAMES = sorted({row[0] for row in WITHOUT_SANDBOX})


@lru_cache
def bound(name: str, params: str) -> BoundVerifier[Any]:
    return load(name).bind(json.loads(params))


def verdict(row: Row) -> Verdict:
    name, params, reference, response, _ = row
    return bound(name, json.dumps(params)).score([Attempt(response, reference)])[0]


def outcome(said: Verdict) -> float | str:
    return said.score if said.status == "graded" else said.status


@pytest.mark.parametrize("name", NAMES)
def test_every_row_gets_its_label(name: str) -> None:
    wrong = [(r, verdict(r)) for r in WITHOUT_SANDBOX if r[0] == name and outcome(verdict(r)) != r[4]]
    assert wrong == []


def test_threads_and_order_change_nothing() -> None:
    rows = WITHOUT_SANDBOX * 3
    alone = [(v.status, v.score, v.reason) for v in map(verdict, rows)]
    order = list(range(len(rows)))
    random.Random(7).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        shuffled = list(pool.map(lambda i: verdict(rows[i]), order))
    assert [(v.status, v.score, v.reason) for v in shuffled] == [alone[i] for i in order]


def test_a_batch_gives_the_same_as_single_calls() -> None:
    def key(row: Row) -> str:
        return repr(row[:2])

    for _, same in groupby(sorted(WITHOUT_SANDBOX, key=key), key=key):
        rows = list(same)
        together = bound(rows[0][0], json.dumps(rows[0][1])).score([Attempt(r[3], r[2]) for r in rows])
        assert [outcome(v) for v in together] == [r[4] for r in rows]
