"""Named streams of random numbers."""

import itertools
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.seeds import derive, stream

NAME = st.one_of(st.text(st.characters(exclude_categories=[])), st.integers())
NAMES = st.lists(NAME, max_size=4)


@given(st.integers(), NAMES, st.integers(), NAMES)
def test_two_streams_have_one_seed_only_if_they_have_one_name(a, x, b, y):
    same = a == b and [(type(n), n) for n in x] == [(type(n), n) for n in y]
    assert (derive(a, *x) == derive(b, *y)) == same
    assert 0 <= derive(a, *x) < 2**63


def test_names_that_hold_the_separator_or_look_like_others_are_others():
    texts = [("a", "b"), ("a\x1fstr:b",), ("a\x1f", "b"), ("a", "\x1fb"), ("a\x1e1str:b",), ("ab",), ("b", "a"), ("a",)]
    names = [*texts, (1, "a"), ("1", "a"), (11,), (1, 1), ("a", ""), ("\ud800",)]
    assert len({derive(0, *n) for n in names}) == len(names)


def test_the_number_is_the_same_in_another_process_with_other_hashes():
    """Resuming on another machine draws on; `hash` would not have done."""
    code = "from verizero.pipeline.seeds import *; print(derive(7, 'rollout', 3, 'é'), stream(7, 'x').random())"
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": h}, capture_output=True, text=True, check=True
        ).stdout
        for h in ("1", "2")
    }
    assert said == {f"{derive(7, 'rollout', 3, 'é')} {stream(7, 'x').random()}\n"}


def test_neighbouring_streams_are_unrelated():
    """Means of their products are those of independent uniforms, within five standard errors."""
    n = 4000
    streams = [[s.random() for _ in range(n)] for s in (stream(0, "a", i) for i in range(4))]
    for x, y in itertools.combinations(streams, 2):
        covariance = sum((a - 0.5) * (b - 0.5) for a, b in zip(x, y, strict=True)) / n
        assert abs(covariance) < 5 * (1 / 12) / n**0.5
