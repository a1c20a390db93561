"""`verizero promote`: compare a run's model with the champion of a registry, and make it the champion if it is better.

    registry/versions/0003/   model/, manifest.json, README.md (the model card), recipe.yaml, evaluation.json
    registry/champion         a link to the version that was promoted last
    registry/decisions.jsonl  every comparison and its decision

A version is written under another name and renamed, and the link is replaced by a rename: a reader sees one champion or
the next, never half of one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from filecmp import cmpfiles
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from verizero.pipeline.algorithms.base import chosen
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import disk_errors, locked, replace_folder, sha256_of, write_atomic
from verizero.pipeline.report.card import CARD, model_card
from verizero.pipeline.report.result import evaluation_markdown
from verizero.pipeline.report.row_types import to_json
from verizero.pipeline.report.run_files import read_run, require_run
from verizero.pipeline.report.summary import summarize
from verizero.pipeline.shown import in_markdown, show

if TYPE_CHECKING:
    from verizero.pipeline.report.intervals import Estimate

Verdict = Literal["first", "better", "worse", "between"]
Evaluate = Callable[[Path, Path], Mapping[str, Any]]
"""(model, run) -> the model's measures on the run's held-out prompts, by domain."""
OnSuites = Callable[[Path], Mapping[str, Any]]
"""The folder of a run or a version -> the measures of its model on suites, by suite."""


def add(commands: Any) -> None:
    command = commands.add_parser("promote", help="compare a finished run with the champion of a registry")
    command.add_argument("run_folder", type=Path, metavar="run", help="e.g. runs/demo")
    command.add_argument("--registry", type=Path, default=Path("registry"), help="default: registry")
    command.add_argument(
        "--suite", help="compare on these suites instead of the run's held-out prompts: names with commas between them"
    )
    command.add_argument("--data-dir", type=Path, help="a folder with the rows of suites, where there is no network")
    answer = command.add_mutually_exclusive_group()
    answer.add_argument("--yes", action="store_true", help="promote it if the comparison does not decide")
    answer.add_argument("--no", action="store_true", help="keep the champion if the comparison does not decide")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison and the decision; return 1 if a person must decide and neither --yes nor --no is given."""
    from verizero.pipeline.models.load import quiet

    quiet()
    on_suites = None if arguments.suite is None else suites_measured(arguments.suite, arguments.data_dir)
    comparison = compare_with_champion(arguments.run_folder, arguments.registry, on_suites=on_suites)
    show(comparison.in_words)
    is_better = comparison.decides
    if is_better is None and not (arguments.yes or arguments.no):
        show("the comparison does not decide: look at both reports, then repeat with --yes or --no", is_error=True)
        return 1
    decided_by = comparison.decided_by or "a person"
    if arguments.yes if is_better is None else is_better:
        show(f"promoted as {promote(comparison, arguments.registry, decided_by)}")
    else:
        keep_back(comparison, arguments.registry, decided_by)
        show("kept back")
    return 0


@dataclass(frozen=True)
class Comparison:
    """A comparison with the champion. `first`: there is no champion; `between`: zero is inside the interval."""

    verdict: Verdict
    run: Path
    champion: Path | None
    difference: Estimate | None
    """Difference of pass@1, challenger minus champion, paired by prompt. Its interval speaks of the two models on such
    prompts, not of their recipes: another seed makes other models."""
    num_prompts: int
    domains: Mapping[str, Any]
    """The challenger's measures, by domain or suite."""

    @property
    def in_words(self) -> str:
        """The comparison in one line."""
        if self.difference is None:
            return f"{self.run.name} is the first: there is no champion to compare with"
        d = self.difference
        result = "may be better or worse" if self.verdict == "between" else f"is {self.verdict}"
        return (
            f"{self.run.name} {result} than the champion: pass@1 {d.value:+.3f} (95% {d.low:+.3f} to {d.high:+.3f}) on "
            f"{self.num_prompts} prompts"
        )

    @property
    def decides(self) -> bool | None:
        """True to promote, False to keep the champion, None if a person must decide."""
        return None if self.verdict == "between" else self.verdict != "worse"

    @property
    def decided_by(self) -> str | None:
        """The rule that decided; None if a person must decide."""
        return {"between": None, "first": "first"}.get(self.verdict, "interval")


def compare_with_champion(
    run: Path, registry: Path, evaluate: Evaluate | None = None, on_suites: OnSuites | None = None
) -> Comparison:
    """Compare the run's model with the registry's champion: on suites, else on the run's held-out prompts.

    The champion is evaluated again unless its own evaluation was on the same prompts.
    Raises: RunError for a run without a final model, or without suites and an evaluation; for the champion itself.
    """
    from verizero.pipeline.report.intervals import paired_difference

    run = require_run(run).resolve()
    files = read_run(run)
    if not (run / "model").is_dir() or not (files.evaluations or on_suites):
        raise RunError(
            f"{run} has no final model with an evaluation; finish the run, with data.evaluation in its recipe, or name "
            "suites with --suite"
        )
    champion = champion_of(registry)
    if champion is not None and _are_same(champion / "model", run / "model"):
        raise RunError(f"{run} is the champion of {registry} already, as version {champion.name}; name another run")
    domains = files.evaluations[-1].domains if on_suites is None else on_suites(run)
    ours = by_prompt(domains)
    if champion is None:
        return Comparison("first", run, None, None, len(ours), domains)
    if on_suites is None:
        theirs = by_prompt(_evaluation_of(champion, run, ours, evaluate or evaluate_on))
    else:
        theirs = by_prompt(on_suites(champion))
    # a prompt is missing from an evaluation where graders failed for all its responses
    both = ours.keys() & theirs.keys()
    difference = paired_difference({p: theirs[p] for p in both}, {p: ours[p] for p in both})
    # Decided only if zero is outside the interval; else a person is asked.
    verdict: Verdict = "better" if difference.low > 0 else "worse" if difference.high < 0 else "between"
    return Comparison(verdict, run, champion, difference, len(both), domains)


def promote(comparison: Comparison, registry: Path, decided_by: str) -> Path:
    """Make the run's model the registry's next version and champion; return the version's folder.

    Raises: RunError if another promotion is running, or the disk is full or not writable.
    """
    from verizero.pipeline.run.saving import recipe_of_run

    with locked(registry):
        versions = registry / "versions"
        numbers = [int(p.name) for p in versions.glob("*") if p.name.isdigit()]
        # Under the lock, so that no other promotion takes the number; half-written versions have no digits as name.
        number = 1 + max(numbers, default=0)
        final = versions / f"{number:04d}"
        with replace_folder(final, f"writing a version into {registry}") as partial:
            run = comparison.run
            shutil.copytree(run / "model", partial / "model")
            shutil.copyfile(run / "recipe.yaml", partial / "recipe.yaml")
            files = read_run(run)
            recipe = recipe_of_run(run)[0]
            manifest = describe(comparison, recipe, files.info, number, decided_by)
            rows = {
                "prompts_sha256": _sha256(run / "data" / "evaluation.jsonl"),
                "evaluations": [to_json(e) for e in files.evaluations],
            }
            (partial / "evaluation.json").write_text(json.dumps(rows))
            # Before the manifest and the card exist: they are not in their own list.
            manifest["files"] = {
                str(p.relative_to(partial)): _sha256(p) for p in sorted(partial.rglob("*")) if p.is_file()
            }
            (partial / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False))
            card = model_card(f"{recipe.name}-{final.name}", recipe, summarize(files), manifest["libraries"])
            before = "the first version" if comparison.champion is None else f"replaced {comparison.champion.name}"
            why = in_markdown(f"Promoted {manifest['promoted']} by {decided_by}; {before}.")
            (partial / CARD).write_text(f"{card}\n## Promotion\n\n{why}\n\n{evaluation_markdown(comparison.domains)}")
        with disk_errors(f"naming version {final.name} the champion of {registry}"):
            link = registry / ".champion-partial"
            link.unlink(missing_ok=True)
            # Relative, so that the registry can be moved or mounted elsewhere.
            link.symlink_to(Path("versions") / final.name)
            # A link cannot be changed in place; renaming over the old one is atomic.
            os.replace(link, registry / "champion")
        _decide(comparison, registry, f"promoted as version {number}", decided_by)
    return final


def keep_back(comparison: Comparison, registry: Path, decided_by: str) -> None:
    """Record that the champion stays. Raises: RunError if a promotion is running."""
    with locked(registry):
        _decide(comparison, registry, "kept back", decided_by)


def champion_of(registry: Path) -> Path | None:
    """Return the folder of the champion's version; None if there is none."""
    link = registry / "champion"
    return link.resolve() if link.exists() else None


def by_prompt(domains: Mapping[str, Any]) -> dict[str, float]:
    """Return pass@1 of each prompt of an evaluation, by "domain/id"."""
    return {f"{d}/{p}": float(v) for d, row in domains.items() for p, v in row.get("by_prompt", [])}


def suites_measured(names: str, data_dir: Path | None) -> OnSuites:
    """Return a function that measures the model of a run or a version on suites, and keeps the answers next to it.

    Raises: ConfigError, DataError for a suite that cannot be loaded.
    """
    from verizero.pipeline.commands.eval import evaluate_suites
    from verizero.pipeline.commands.suites.asking import load_suites
    from verizero.pipeline.commands.suites.models import FOLDER, Measured
    from verizero.pipeline.report.progress import Lines
    from verizero.pipeline.run.saving import recipe_of_run

    loaded = load_suites(names.split(","), data_dir, {})

    def measured(folder: Path) -> Mapping[str, Any]:
        template = recipe_of_run(folder)[0].data.template
        model = Measured(folder.name, str(folder / "model"), folder / FOLDER, template)
        return evaluate_suites([model], loaded, [], Lines())[0].row.domains

    return measured


def evaluate_on(model: Path, run: Path) -> dict[str, Any]:
    """Evaluate `model` on the held-out rows of `run`, as the run's recipe says."""
    from verizero.pipeline.commands.eval import held_out_of_run
    from verizero.pipeline.whole_run import evaluate_model

    return evaluate_model(*held_out_of_run(run, model))


def describe(
    comparison: Comparison, recipe: RunConfig, info: Mapping[str, Any], number: int, decided_by: str
) -> dict[str, Any]:
    """Return the manifest of a version: its parents, data and recipe, and why it was promoted. `info`: of run.json."""
    run, difference = comparison.run, comparison.difference
    return {
        "version": number,
        "name": recipe.name,
        "promoted": datetime.now(UTC).isoformat(timespec="seconds"),
        "decided_by": decided_by,
        "verdict": comparison.verdict,
        "difference": None if difference is None else asdict(difference),
        "num_prompts": comparison.num_prompts,
        "measured_on": sorted(comparison.domains),
        "run": str(run),
        "parents": {
            "model": recipe.model.path or "made by the recipe",
            "champion": None if comparison.champion is None else comparison.champion.name,
        },
        "data": {p.name: _sha256(p) for p in sorted((run / "data").glob("*.jsonl"))},
        "recipe": _sha256(run / "recipe.yaml"),
        "algorithm": None if recipe.rl is None else Path(chosen(recipe.rl.algorithm)[0]).stem,
        "libraries": info.get("versions", {}),
    }


def _evaluation_of(champion: Path, run: Path, ours: Mapping[str, float], evaluate: Evaluate) -> Mapping[str, Any]:
    """Return the champion's last evaluation if it was on the same rows and prompts, else a new one."""
    record = json.loads((champion / "evaluation.json").read_text())
    # A champion that was compared on suites alone may have none.
    last: Mapping[str, Any] = record["evaluations"][-1]["domains"] if record["evaluations"] else {}
    # The same rows, and graders that judged the same prompts: then the pairs are complete.
    if record["prompts_sha256"] == _sha256(run / "data" / "evaluation.jsonl") and by_prompt(last).keys() == ours.keys():
        return last
    return evaluate(champion / "model", run)


def _decide(comparison: Comparison, registry: Path, decision: str, decided_by: str) -> None:
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": str(comparison.run),
        "champion": None if comparison.champion is None else comparison.champion.name,
        "verdict": comparison.verdict,
        "difference": None if comparison.difference is None else asdict(comparison.difference),
        "decision": decision,
        "decided_by": decided_by,
    }
    path = registry / "decisions.jsonl"
    before = path.read_bytes() if path.is_file() else b""
    # Rewritten whole: an append that is cut would leave half a line for ever.
    write_atomic(path, before + json.dumps(line).encode() + b"\n")


def _are_same(one_model: Path, other: Path) -> bool:
    names = os.listdir(one_model)
    return sorted(names) == sorted(os.listdir(other)) and not any(cmpfiles(one_model, other, names, shallow=False)[1:])


def _sha256(path: Path) -> str:
    return sha256_of(path) if path.is_file() else ""
