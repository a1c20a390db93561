"""`verizero promote`: compare a run's model with the champion of a registry, and make it the champion if it is better.

    registry/versions/0003/   model/, manifest.json, README.md (the model card), recipe.yaml, evaluation.json
    registry/champion         a link to the version that was promoted last
    registry/decisions.jsonl  every comparison and its decision

A version is written under another name and renamed, and the link is replaced by a rename: a reader sees one champion or
the next, never half of one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from verizero.pipeline.algorithms.base import chosen
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.recipes import read_request
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.files import disk_errors, iterate_jsonl, locked, replace_folder, write_atomic
from verizero.pipeline.report.files import read_run, require_run
from verizero.pipeline.report.row_types import to_json
from verizero.pipeline.shown import in_markdown, show
from verizero.verifiers.base import load

if TYPE_CHECKING:
    from verizero.pipeline.report.intervals import Estimate

Verdict = Literal["first", "better", "worse", "between"]
Evaluate = Callable[[Path, Path], Mapping[str, Any]]
"""(model, run) -> the model's measures on the run's held-out prompts, by domain."""
OnSuites = Callable[[Path], Mapping[str, Any]]
"""The folder of a run or a version -> the measures of its model on suites, by suite."""


def add(commands: Any) -> None:
    """Add the command to the parser."""
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
    Raises: RunError for a run without a final model, or without suites and an evaluation.
    """
    from verizero.pipeline.report.intervals import paired_difference

    run = require_run(run).resolve()
    files = read_run(run)
    if not (run / "model").is_dir() or not (files.evaluations or on_suites):
        raise RunError(
            f"{run} has no final model with an evaluation; finish the run, with data.evaluation in its recipe, or name "
            "suites with --suite"
        )
    domains = files.evaluations[-1].domains if on_suites is None else on_suites(run)
    ours = by_prompt(domains)
    champion = champion_of(registry)
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
            manifest = describe(comparison, number, decided_by)
            evaluations = read_run(run).evaluations
            rows = {
                "prompts_sha256": _sha256(run / "data" / "evaluation.jsonl"),
                "evaluations": [to_json(e) for e in evaluations],
            }
            (partial / "evaluation.json").write_text(json.dumps(rows))
            # Before the manifest and the card exist: they are not in their own list.
            manifest["files"] = {
                str(p.relative_to(partial)): _sha256(p) for p in sorted(partial.rglob("*")) if p.is_file()
            }
            (partial / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False))
            (partial / "README.md").write_text(model_card(manifest, comparison.domains))
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
    from verizero.pipeline.commands.suites.models import FOLDER, Measured
    from verizero.pipeline.commands.suites.rows import load_suites
    from verizero.pipeline.report.progress import Lines

    loaded = load_suites(names.split(","), data_dir, {})

    def measured(folder: Path) -> Mapping[str, Any]:
        template = read_request(folder / "recipe.yaml").config.data.template
        model = Measured(folder.name, str(folder / "model"), folder / FOLDER, template)
        return evaluate_suites([model], loaded, [], Lines())[0].row.domains

    return measured


def evaluate_on(model: Path, run: Path) -> dict[str, Any]:
    """Evaluate `model` on the held-out rows of `run`, as the run's recipe says."""
    from verizero.pipeline.whole_run import evaluate_model

    rows = {name: json.dumps([{"file": str(run / "data" / f"{name}.jsonl")}]) for name in ("train", "evaluation")}
    # The rows that the run itself used, as its sources may have changed since.
    sources = [f"data.{name}={text}" for name, text in rows.items()]
    request = read_request(run / "recipe.yaml", [*sources, f"model.path={json.dumps(str(model))}", "model.create=null"])
    return evaluate_model(request.config, request.base_dir)


def describe(comparison: Comparison, number: int, decided_by: str) -> dict[str, Any]:
    """Return the manifest of a version: its parents, data, recipe, verifiers and code, and why it was promoted."""
    run, difference = comparison.run, comparison.difference
    files, recipe = read_run(run), read_request(run / "recipe.yaml").config
    model = recipe.model.path or "made by the recipe"
    return {
        "version": number,
        "name": recipe.name,
        "promoted": datetime.now(UTC).isoformat(timespec="seconds"),
        "decided_by": decided_by,
        "verdict": comparison.verdict,
        "difference": None if difference is None else difference.as_dict(),
        "num_prompts": comparison.num_prompts,
        "measured_on": sorted(comparison.domains),
        "run": str(run),
        "parents": {"model": model, "champion": None if comparison.champion is None else comparison.champion.name},
        "data": {p.name: _sha256(p) for p in sorted((run / "data").glob("*.jsonl"))},
        "recipe": _sha256(run / "recipe.yaml"),
        "algorithm": None if recipe.rl is None else Path(chosen(recipe.rl.algorithm)[0]).stem,
        "verifiers": _verifiers(run, recipe),
        "code": {"version": _package_version(), "commit": _commit()},
        "libraries": files.info.get("versions", {}),
    }


def model_card(manifest: Mapping[str, Any], domains: Mapping[str, Any]) -> str:
    """Return README.md of a version: its results and its origin."""
    rows = [
        f"| {in_markdown(name)} | {row['pass@1']['value']:.3f} | "
        f"{row['pass@1']['low']:.3f} to {row['pass@1']['high']:.3f} | {row['num_prompts']} |"
        for name, row in sorted(domains.items())
        if "pass@1" in row
    ]
    parents, code = manifest["parents"], manifest["code"]
    data = [f"- {in_markdown(name)} sha256 `{digest[:16]}…`" for name, digest in manifest["data"].items()]
    return "\n".join(
        [
            "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---",
            f"# {in_markdown(manifest['name'])}, version {manifest['version']}",
            f"Trained with verifiable rewards ({in_markdown(manifest['algorithm'] or 'SFT alone')}), "
            f"from {in_markdown(parents['model'])}"
            + (f"; replaced version {parents['champion']}." if parents["champion"] else "; the first version."),
            "\n| domain | pass@1 | 95% interval over prompts | prompts |\n| --- | --- | --- | --- |",
            *rows,
            f"\nPromoted {manifest['promoted']} by {in_markdown(manifest['decided_by'])}. The recipe is `recipe.yaml`; "
            f"graded by {', '.join(map(in_markdown, manifest['verifiers'])) or 'no verifier'}; "
            f"made by verizero {code['version']}" + (f" at {code['commit'][:12]}." if code["commit"] else "."),
            "\nData:\n",
            *data,
            "",
        ]
    )


def both_curves(comparison: Comparison) -> str:
    """Return a picture for markdown: held-out pass@1 of both at each evaluation of their runs."""
    from verizero.pipeline.report.curves import Chart, Series
    from verizero.pipeline.report.round import data_uri

    series = [_rates([e.domains for e in read_run(comparison.run).evaluations])]
    if comparison.champion is not None:
        evaluations = json.loads((comparison.champion / "evaluation.json").read_text())["evaluations"]
        series.append(_rates([e["domains"] for e in evaluations]))
    length = max(map(len, series))
    padded = [(*values, *[None] * (length - len(values))) for values in series]
    chart = Chart(
        name="promotion",
        title="Held-out pass@1",
        caption="",
        x=tuple(float(i) for i in range(length)),
        series=tuple(Series(n, y, i) for i, (n, y) in enumerate(zip(("challenger", "champion"), padded, strict=False))),
        x_label="evaluation",
        y_limits=(0.0, 1.0),
    )
    return f"![pass@1 of both]({data_uri(chart)})"


def _rates(evaluations: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[float | None]:
    """Return pass@1, mean of domains, of each evaluation."""
    by_evaluation = ([d["pass@1"]["value"] for d in e.values() if "pass@1" in d] for e in evaluations)
    return [fmean(rates) if rates else None for rates in by_evaluation]


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
        "difference": None if comparison.difference is None else comparison.difference.as_dict(),
        "decision": decision,
        "decided_by": decided_by,
    }
    path = registry / "decisions.jsonl"
    before = path.read_bytes() if path.is_file() else b""
    # Rewritten whole: an append that is cut would leave half a line for ever.
    write_atomic(path, before + json.dumps(line).encode() + b"\n")


def _verifiers(run: Path, recipe: RunConfig) -> dict[str, str]:
    """Return each verifier that the rows name, with the hash of the file of its function."""
    names = {row.get("verifier") for path in (run / "data").glob("*.jsonl") for row in iterate_jsonl(path)}
    hashes = {}
    for name in sorted(str(n) for n in names if n):
        try:
            choice = recipe.data.verifiers.get(name) or VerifierChoice.of_key(name)
            verifier = load(choice.name, choice.path)
        except ConfigError:
            hashes[name] = ""  # a path from another folder: its file cannot be hashed from here
            continue
        module = sys.modules.get(verifier.module)
        hashes[name] = _sha256(Path(getattr(module, "__file__", None) or ""))
    return hashes


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _package_version() -> str:
    try:
        return version("verizero")
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 and (root / ".git").exists() else None
