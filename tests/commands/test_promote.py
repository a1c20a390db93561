"""Challenger against champion, and the registry: versions whole or not there, with what they were made from."""

import errno
import hashlib
import json

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.commands import promote as promotion
from verizero.pipeline.commands.promote import champion_of, compare_with_champion, keep_back
from verizero.pipeline.config.load import dump
from verizero.pipeline.errors import RunError
from verizero.pipeline.report.estimates import PromptSamples, summarize_domain

ROW = {"question": "1+1=", "answer": "2", "domain": "arithmetic", "verifier": "math"}


def finished(folder, name, rates, rows="e"):
    """The folder of a run whose last evaluation has these pass rates, of eight samples a prompt."""
    run = folder / name
    (run / "model").mkdir(parents=True)
    (run / "model" / "model.safetensors").write_bytes(name.encode())
    (run / "data").mkdir()
    for part in ("train", "evaluation"):
        (run / "data" / f"{part}.jsonl").write_text(json.dumps({"id": rows + part, **ROW}) + "\n")
    (run / "recipe.yaml").write_text(dump(tiny({"name": name})))
    (run / "run.json").write_text(json.dumps({"name": name, "versions": {"torch": "2"}}))
    evaluations = [evaluation([0.1] * len(rates)), evaluation(rates)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in evaluations))
    return run


def evaluation(rates):
    samples = [
        PromptSamples(f"p{i}", tuple(j < round(8 * r) for j in range(8)), ("1",) * 8, (3,) * 8, (False,) * 8)
        for i, r in enumerate(rates)
    ]
    domains = {"arithmetic": summarize_domain(samples, 8)}
    place = {"stage": "rl", "round": 1, "step": 0, "label": "end", "k": 8}
    return {"kind": "evaluation", **place, "domains": domains, "time": {}}


HALF = [0.25, 0.5, 0.75, 0.5] * 5
BETTER = [0.5, 0.75, 1.0, 0.75] * 5
NEAR = [0.375, 0.375, 0.75, 0.5] * 5


@pytest.fixture
def registry(tmp_path):
    first = compare_with_champion(finished(tmp_path, "old", HALF), tmp_path / "registry")
    assert first.verdict == "first"
    promotion.promote(first, tmp_path / "registry", "first")
    return tmp_path / "registry"


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [(BETTER, "better"), ([0.0] * 20, "worse"), (NEAR, "between")]
    + [([*NEAR[:-1], rate], "between") for rate in (0.25, 0.75)],  # a little worse, and a little better
)
def test_the_paired_interval_decides(tmp_path, registry, rates, verdict):
    found = compare_with_champion(finished(tmp_path, "new", rates), registry, no_evaluation)
    assert found.verdict == verdict
    assert found.difference.value == pytest.approx(sum(rates) / 20 - 0.5)
    assert f"{found.difference.value:+.3f}" in found.in_words
    assert found.num_prompts == 20


def cell(measure):
    return f"{measure['value']:.3f} ({measure['low']:.3f} to {measure['high']:.3f})"


def first_cell(card, domain):
    """The first measure of a domain in the card's last table."""
    rows = [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith(f"| {domain} |")]
    return rows[-1][1]


def no_evaluation(model, run):
    raise AssertionError("both were evaluated on the same rows already")


def test_a_version_holds_the_model_and_what_it_was_made_from(tmp_path, registry):
    run = finished(tmp_path, "new", BETTER)
    folder = promotion.promote(compare_with_champion(run, registry), registry, "interval")
    assert champion_of(registry) == folder == (registry / "versions" / "0002").resolve()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["parents"] == {"model": "made by the recipe", "champion": "0001"}
    assert (manifest["version"], manifest["decided_by"], manifest["algorithm"]) == (2, "interval", "grpo")
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert "model/model.safetensors" in manifest["files"]
    rows = hashlib.sha256((run / "data" / "train.jsonl").read_bytes()).hexdigest()
    assert manifest["data"]["train.jsonl"] == rows
    card = (folder / "README.md").read_text()
    assert "replaced 0001" in card
    assert first_cell(card, "arithmetic") == cell(evaluation(BETTER)["domains"]["arithmetic"]["pass@1"])
    assert (folder / "recipe.yaml").read_text() == (run / "recipe.yaml").read_text()


def test_what_is_kept_back_leaves_the_champion_and_a_line(tmp_path, registry):
    before = champion_of(registry)
    keep_back(compare_with_champion(finished(tmp_path, "new", NEAR), registry), registry, "a person")
    assert champion_of(registry) == before
    lines = [json.loads(line) for line in (registry / "decisions.jsonl").read_text().splitlines()]
    assert [(d["decision"], d["decided_by"]) for d in lines] == [
        ("promoted as version 1", "first"),
        ("kept back", "a person"),
    ]


@pytest.mark.parametrize(
    ("end", "seen"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(errno.ENOSPC, "full"), RunError), (ValueError(), ValueError)],
    ids=["interrupted", "disk full", "bug"],
)
def test_a_promotion_that_fails_leaves_the_champion_and_all_versions(end, seen, tmp_path, registry, monkeypatch):
    found = compare_with_champion(finished(tmp_path, "new", BETTER), registry)
    before = champion_of(registry)

    def dies(*arguments):
        raise end

    with monkeypatch.context() as patched:
        patched.setattr(promotion, "model_card", dies)
        with pytest.raises(seen):
            promotion.promote(found, registry, "interval")
    assert champion_of(registry) == before is not None
    assert (before / "model" / "model.safetensors").read_bytes() == b"old"
    assert [p.name for p in (registry / "versions").iterdir() if p.name.isdigit()] == ["0001"]
    assert promotion.promote(found, registry, "interval").name == "0002"
    assert not list((registry / "versions").glob(".*"))


def test_on_other_rows_the_champion_is_evaluated_again(tmp_path, registry):
    asked = []

    def again(model, run):
        asked.append((model, run))
        return dict(evaluation([0.0] * 20)["domains"])

    run = finished(tmp_path, "new", NEAR, rows="other")
    found = compare_with_champion(run, registry, again)
    assert asked == [(registry.resolve() / "versions" / "0001" / "model", run)]
    assert found.verdict == "better"


def test_a_run_without_model_or_evaluation_and_the_champion_itself_are_refused(tmp_path, registry):
    with pytest.raises(RunError, match=r"/old is the champion .* as version 0001; name another run"):
        compare_with_champion(tmp_path / "old", registry)
    run = finished(tmp_path, "new", NEAR)
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match=r"new .*data\.evaluation"):
        compare_with_champion(run, tmp_path / "registry")
