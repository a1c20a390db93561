"""The shipped recipes: they load, say what they are, and are what they say."""

import json
import math
import re
import runpy

import pytest

from benchmarks.presets import on_job
from tests.config.test_load import CONFIGS, RECIPES
from tests.stages.parity import VERIFIER
from tests.stages.sessions import train_model
from tests.stages.tiny import SUMS, tiny
from verizero.pipeline import registry
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.config.load import load_recipe, read_tree
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.plan.devices import DEVICES
from verizero.pipeline.plan.estimate import plans
from verizero.pipeline.plan.memory import GIB

ALGORITHMS = sorted((CONFIGS / "algorithms").glob("*.yaml"))
OPTIONS = sorted((CONFIGS / "options").glob("*.yaml"))
APART = ["custom", "flash_reinforce", "gdpo", "grpo_process", "kl_cov", "pass_at_k", "ppo", "remax", "vapo"]
"""Recipes with something that no other has: a critic, baselines, components, steps, several responses at once."""
TRAINED = [
    pytest.param(p, marks=[] if p.stem in APART or p in OPTIONS else pytest.mark.nightly) for p in ALGORITHMS + OPTIONS
]


def opening(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_recipe_loads_and_is_named_after_its_file(path):
    config = load_recipe(path)
    assert config.name == (
        f"demo_{path.stem}" if path.parent.name in ("algorithms", "options", "preferences") else path.stem
    )
    said = opening(path)
    assert "# Shows: " in said
    assert "# Hardware: " in said


OF_HUB = [p for p in RECIPES if re.search(r"^  path: (?!package:)\S+/", p.read_text(), re.MULTILINE)]
"""Recipes of a pretrained model that is downloaded: they need a GPU."""


@pytest.mark.parametrize("path", OF_HUB, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_a_recipe_fits_the_gpus_that_it_names_and_says_the_plan(path):
    said = " ".join(re.sub(r"\n#\s*", " ", opening(path)).split())
    found = re.search(
        r"(\d+ x )?(\d+|one) GPUs? with (\d+) GB.*`verizero plan (\S+) --gpus (\d+) --gpu (\w+)`: (.*? a step)\.", said
    )
    assert found is not None, (
        "name the GPUs, and write what the plan says: `verizero plan ...`: 17 GiB a GPU, 86 s a step."
    )
    nodes, number, gigabytes, name, gpus, gpu, written = found.groups()
    assert name == str(path.relative_to(CONFIGS).with_suffix(""))
    assert int(gpus) == int((nodes or "1").split()[0]) * (1 if number == "one" else int(number))
    config = load_recipe(path)
    assert config.launch.kind == "none" or int(gpus) == config.launch.nodes.train * config.launch.gpus_per_node
    assert DEVICES[gpu].memory_gib == int(gigabytes)
    (made,) = plans(config, int(gpus), gpu).values()
    assert made.fits
    assert written == f"{made.total / GIB:.0f} GiB a GPU, {sum(made.phases.values()):,.0f} s a step"


@pytest.mark.parametrize(
    "path", [p for p in RECIPES if "# Time:" in p.read_text() and "sample " in opening(p)], ids=lambda p: p.stem
)
def test_what_a_recipe_says_of_its_size_is_what_it_samples(path):
    config = load_recipe(path)
    rl = config.rl
    said = re.search(
        r"(\d+) steps sample (\d+) x (\d+) x (\d+) responses of at most (\d+) tokens: ([\d.]+) (\w+)",
        " ".join(re.sub(r"\n#\s*", " ", opening(path)).split()),
    )
    *counts, total = (float(said[i]) for i in range(1, 7))
    steps = rl.rounds * rl.steps_per_round
    limit = config.rollout.max_response_tokens
    assert counts == [steps, steps, rl.prompts_per_step, rl.group_size, limit]
    samples = steps * rl.prompts_per_step * rl.group_size * limit
    assert total * {"million": 1e6, "billion": 1e9}[said[7]] == pytest.approx(samples, rel=0.05)


def test_the_page_of_recipes_is_what_the_models_say():
    docs = CONFIGS.parent / "docs"
    made = runpy.run_path(str(docs / "make_recipes.py"))["page"]()
    assert (docs / "recipes.md").read_text(encoding="utf-8") == made, "run `make docs`"


class TestAlgorithms:
    @pytest.mark.parametrize("path", ALGORITHMS, ids=lambda p: p.stem)
    def test_every_preset_trains_on_another_job_too(self, path, tmp_path):
        ours = load_recipe(on_job(path, CONFIGS / "think.yaml", tmp_path))
        theirs, job = load_recipe(path), load_recipe(CONFIGS / "think.yaml")
        assert (ours.rl.algorithm, ours.rl.select) == (theirs.rl.algorithm, theirs.rl.select)
        assert (ours.data, ours.sft, ours.rl.optimizer) == (job.data, job.sft, job.rl.optimizer)

    def test_every_preset_that_the_loop_can_run_has_a_recipe_and_no_other_has(self):
        runs = set()
        for name in registry.names("algorithms"):
            several = ["scoring.components=[{verifier: length}]"] if name == "gdpo" else []
            try:
                tiny(overrides=[f"rl.algorithm={{name: {name}}}", "rl.prompts_per_step=4", *several])
                runs.add(name)
            except ConfigError as exc:
                if "Field required" in str(exc):  # it has parts to name, and so no preset
                    runs.add(name)
        assert {p.stem for p in ALGORITHMS} == runs

    @pytest.mark.parametrize("path", ALGORITHMS, ids=lambda p: p.stem)
    def test_a_recipe_is_the_demo_with_the_presets_own_numbers(self, path):
        demo, mine = read_tree(CONFIGS / "demo.yaml"), read_tree(path)
        given = dict(mine["rl"].pop("algorithm"))
        assert demo["rl"].pop("algorithm") is not None
        assert mine.pop("name") != demo.pop("name")
        select, kept = demo["rl"].pop("select"), mine["rl"].pop("select")
        name = given.pop("name")
        # VAPO is for thousands of tokens and of steps; its recipe says what that means for the demo
        shorter = {"vapo": {"critic_warmup_steps": 5, "length_alpha": 1.0}}
        if name in shorter:
            assert mine["rl"]["optimizer"].pop("learning_rate") < demo["rl"]["optimizer"].pop("learning_rate")
        if name == "flash_reinforce":  # one response to each prompt, and as many responses a step
            sizes = [tree["rl"].pop("prompts_per_step") * tree["rl"].pop("group_size") for tree in (mine, demo)]
            assert sizes[0] == sizes[1]
        _, parts = load_algorithm(name, given)
        assert kept == (select if parts.needs_group else {"keep": "all"})
        assert ("components" in mine.pop("scoring", {})) == parts.needs_components
        assert mine == demo
        assert name == path.stem
        if name != "custom":
            assert parts == load_algorithm(name, shorter.get(name))[1]

    @pytest.mark.run
    @pytest.mark.parametrize("path", TRAINED, ids=lambda p: p.stem)
    def test_it_trains(self, path, tmp_path):
        (tmp_path / "parity.py").write_text(VERIFIER, encoding="utf-8")
        sums = {"generator": {"name": "arithmetic", "params": SUMS}, "verifier": {"path": "parity.py:parity"}}
        rl = load_recipe(path).rl
        algorithm = rl.algorithm | ({"critic_warmup_steps": 1} if "critic_warmup_steps" in rl.algorithm else {})
        sections = {name: read_tree(path).get(name, {}) for name in ("scoring", *["rollout"] * (path in OPTIONS))}
        own = {"algorithm": algorithm, "select": {"keep": rl.select.keep}}
        few = ["rl.rounds=1", "rl.prompts_per_step=4", "rl.steps_per_round=2", "rollout.max_response_tokens=6"]
        few += ["checkpoint.every_steps=100", "evaluation.limit=1", "evaluation.before_training=false"]
        config = tiny({"stages": ["rl"], "data": {"train": [sums]}, "rl": own, **sections}, few)
        train_model(config, tmp_path, tmp_path)
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        steps = [r["metrics"] for r in rows if r["kind"] == "step" and r["stage"] == "rl"]
        assert len(steps) == 2
        norms = [s["grad_norm"] for s in steps if "grad_norm" in s]
        assert norms
        assert all(math.isfinite(n) for n in norms)
        assert max(norms) > 0, "no update moved the policy"
