"""What holds for every generator: a seed gives its rows, none is both trained on and held out, and room is counted."""

import json
import re

import pytest

from verizero.pipeline.data.generators.base import generate
from verizero.pipeline.errors import ConfigError

SMALL = {
    "arithmetic": {"num_train": 500, "num_evaluation": 60, "num_demonstrations": 300, "forms": ["+", "-"]},
    "countdown": {"num_train": 150, "num_evaluation": 50, "num_demonstrations": 300},
    "extraction": {"num_train": 200, "num_evaluation": 64},
    "guess": {"num_demonstrations": 200},
    "induction": {"num_train": 300, "num_evaluation": 80, "num_demonstrations": 300},
    "instructions": {"num_train": 360, "num_evaluation": 64},
    "repair": {"num_intercepts": 20, "num_held_out": 5, "num_demonstrations": 300},
    "sql": {"num_train": 200, "num_evaluation": 50, "num_demonstrations": 300},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_gives_its_rows_and_no_task_is_both_trained_on_and_held_out(name):
    split, again, other = (generate(name, SMALL[name], seed) for seed in (0, 0, 1))
    assert split == again
    assert split != other
    rows = [*split.train, *split.evaluation]
    assert len({r["id"] for r in rows}) == len(rows)
    assert json.loads(json.dumps([*rows, *split.demonstrations])) == [*rows, *split.demonstrations]
    for part, field in ((split.train, "num_train"), (split.evaluation, "num_evaluation")):
        assert len(part) == SMALL[name].get(field, len(part)) > 0
    if name != "guess":  # whose only tasks are for both
        asked, held_out = (
            {json.dumps([r["question"], r["answer"]]) for r in p} for p in (split.train, split.evaluation)
        )
        assert not asked & held_out


@pytest.mark.parametrize(
    ("name", "params", "wanted"),
    [
        ("arithmetic", {"digits": 1}, "num_train must be <= 0"),
        ("arithmetic", {"digits": 1, "num_train": 60, "num_evaluation": 30}, "num_train must be <= 40"),
        ("arithmetic", {"nois": 1}, "no parameter 'nois'; did you mean noise"),
        ("arithmetic", {"noise": 1.5}, "noise"),
        ("arithmetic", {"forms": ["+", "+"]}, "forms must be distinct"),
        ("extraction", {"num_train": 600, "kinds": ["person"]}, "must be <= 300 for 1 kinds, got 600"),
        ("guess", {"low": 9, "high": 8}, "low must be <= high"),
        ("induction", {"num_train": 600}, "num_train + num_evaluation must be <= 570"),
        ("induction", {"a_min": 5, "a_max": 4}, "a_max and b_max must be >= a_min and b_min"),
        ("instructions", {"num_train": 400}, "num_train must be <= 384"),
        ("instructions", {"num_evaluation": 97}, "num_evaluation must be <= 96"),
        ("instructions", {"kinds": ["sonnet"]}, "sonnet"),
        ("repair", {"num_held_out": 100}, "num_held_out must be < num_intercepts"),
    ],
)
def test_bad_parameters_say_what_is_allowed(name, params, wanted):
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        generate(name, params, 0)
