"""The planted faults: each changes a recipe that loads, in functions that exist."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest

from benchmarks.diagnose.fault import Fault, replaced
from benchmarks.diagnose.faults import ALL, BY_NAME, HEALTHY
from benchmarks.diagnose.rows import operands, read, write_rows
from benchmarks.diagnose.trained import prepare_inputs
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.verifiers.base import load

CAUSES = {
    "other_template",
    "end_token_missing",
    "wrong_references",
    "false_negatives",
    "false_positives",
    "too_hard",
    "too_easy",
    "starvation",
    "domain_imbalance",
    "infrastructure_zeros",
    "stale_engine_weights",
    "sampling_differs",
    "engine_mismatch",
    "ratios_explode",
    "clip_stops_learning",
    "learning_rate_high",
    "learning_rate_low",
    "kl_too_strong",
    "entropy_collapse",
    "length_cap",
    "length_drift",
    "overlong_penalty",
    "reward_scales",
    "advantages_vanish",
    "mask_trains_prompt",
    "mask_leaves_end",
    "reference_never_moves",
    "reference_moves_too_often",
    "sft_memorised",
    "evaluation_leak",
    "evaluation_too_small",
    "critic_not_learning",
    "gradients_always_clipped",
    "prompts_repeat",
    "policy_lag",
    "seed_noise",
}
"""The causes that a diagnosis must tell apart."""


def test_every_cause_has_a_fault_and_every_name_is_its_own() -> None:
    assert {f.cause for f in ALL} == CAUSES
    assert len(BY_NAME) == len(ALL) + len(HEALTHY)


def test_a_name_does_not_give_the_cause_away() -> None:
    assert [f.name for f in ALL if f.cause in f.name] == []


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the recipes start from, without a fault."""
    return prepare_inputs(BY_NAME["healthy"], 0, tmp_path_factory.mktemp("healthy") / "inputs").parent


@cache
def unchanged(recipe: Path) -> RunConfig:
    return load_recipe(recipe)


@pytest.mark.parametrize("fault", [*HEALTHY, *ALL], ids=lambda f: f.name)
def test_the_recipe_loads_with_the_fault(fault: Fault, healthy: Path, tmp_path: Path) -> None:
    folder = healthy
    if fault.data is not None:
        folder = tmp_path / "inputs"
        shutil.copytree(healthy, folder)
        fault.data(folder, 0)
    recipe = folder / fault.recipe.name
    changed = load_recipe(recipe, fault.overrides)
    for source in changed.data.sources:
        assert source.file is not None
        assert read(folder / source.file)
    assert changed.rl is not None
    for choice in (changed.rl.reward, *(c.verifier for c in changed.scoring.components)):
        if choice is not None:
            load(choice.name, choice.path, folder)
    rows = [path.name for path in healthy.glob("*.jsonl") if path.read_bytes() != (folder / path.name).read_bytes()]
    is_changed = bool(rows) or changed != unchanged(healthy / recipe.name) or fault.patch is not nullcontext
    assert is_changed == (fault.name != recipe.stem)


@pytest.mark.parametrize("fault", [f for f in ALL if f.patch is not nullcontext], ids=lambda f: f.name)
def test_a_patch_replaces_what_exists(fault: Fault) -> None:
    with fault.patch():
        pass


def test_a_patch_ends_with_its_block_and_refuses_an_unknown_name() -> None:
    class Holder:
        number = 1

    with replaced(Holder, "number", 2):
        assert Holder.number == 2
    assert Holder.number == 1
    with pytest.raises(AttributeError), replaced(Holder, "missing", 2):
        pytest.fail("a missing name was replaced")


def test_no_held_out_pair_is_trained_on(tmp_path: Path) -> None:
    write_rows(tmp_path, 3)
    for prefix in ("", "differences_"):
        held_out = {tuple(sorted(operands(r))) for r in read(tmp_path / f"{prefix}evaluation.jsonl")}
        for file in ("train", "demonstrations"):
            assert not held_out & {tuple(sorted(operands(r))) for r in read(tmp_path / f"{prefix}{file}.jsonl")}
