"""Promotion: a run's model against the champion of a registry, on the same prompts; and the registry, a folder.

    registry/versions/0003/   model/, manifest.json, README.md (the model card), recipe.yaml, evaluation.json
    registry/champion         a link to the version that was promoted last
    registry/decisions.jsonl  every comparison and what was decided

A version is written aside and named by one rename, and the link is replaced by another: a reader sees one champion or
the next one, whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pipeline import seeds
from pipeline.config.recipes import read_request
from pipeline.config.run import RunConfig
from pipeline.errors import ConfigError, RunError
from pipeline.report.curves import Chart, Series
from pipeline.report.estimates import Estimate, paired_difference
from pipeline.report.files import iterate_jsonl, read_run, write_atomic
from pipeline.report.round import data_uri
from pipeline.run.lock import locked
from pipeline.train.checkpoint import disk_errors
from verifiers.base import load

Verdict = Literal["first", "better", "worse", "between"]
Evaluate = Callable[[Path, Path], Mapping[str, Any]]
"""(model, run) -> what the model reaches on the run's held-out prompts, by domain."""


@dataclass(frozen=True)
class Comparison:
    """Challenger against champion. `first`: there is no champion; `between`: zero lies inside the interval."""

    verdict: Verdict
    run: Path
    champion: Path | None
    difference: Estimate | None
    """Of pass@1, challenger minus champion, paired by prompt."""
    num_prompts: int

    @property
    def in_words(self) -> str:
        """One line for people."""
        if self.difference is None:
            return f"{self.run.name} is the first: there is no champion to compare with"
        d = self.difference
        stands = "may be better or worse" if self.verdict == "between" else f"is {self.verdict}"
        return (
            f"{self.run.name} {stands} than the champion: pass@1 {d.value:+.3f} (95% {d.low:+.3f} to {d.high:+.3f}) on "
            f"{self.num_prompts} prompts"
        )


def compare_with_champion(run: Path, registry: Path, evaluate: Evaluate | None = None) -> Comparison:
    """How the run's model stands against the registry's champion, on the run's held-out prompts.

    The champion's own evaluation serves where it was of the same rows; else the champion is evaluated on the run's.
    Raises: RunError for a run without a final model or an evaluation.
    """
    run = run.resolve()
    files = read_run(run)
    if not (run / "model").is_dir() or not files.evaluations:
        raise RunError(f"{run} has no final model with an evaluation; finish it, with data.evaluation in its recipe")
    ours = by_prompt(files.evaluations[-1]["domains"])
    champion = champion_of(registry)
    if champion is None:
        return Comparison("first", run, None, None, len(ours))
    theirs = by_prompt(_evaluation_of(champion, run, ours, evaluate or evaluate_on))
    both = ours.keys() & theirs.keys()  # a prompt whose every response was lost to graders is in no measure
    difference = paired_difference(
        {p: theirs[p] for p in both}, {p: ours[p] for p in both}, seeds.derive(0, "promotion")
    )
    verdict: Verdict = "better" if difference.low > 0 else "worse" if difference.high < 0 else "between"
    return Comparison(verdict, run, champion, difference, len(both))


def promote(comparison: Comparison, registry: Path, decided_by: str) -> Path:
    """The run's model as the registry's next version and champion; the version's folder.

    Raises: RunError if another promotion is at work, or the disk does not take it.
    """
    with locked(registry):
        versions = registry / "versions"
        with disk_errors(f"writing a version into {registry}", versions):
            versions.mkdir(exist_ok=True)
            number = 1 + max((int(p.name) for p in versions.iterdir() if p.name.isdigit()), default=0)
            partial, final = versions / f".{number:04d}-partial", versions / f"{number:04d}"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            run = comparison.run
            shutil.copytree(run / "model", partial / "model")
            shutil.copyfile(run / "recipe.yaml", partial / "recipe.yaml")
            manifest = describe(comparison, number, decided_by)
            evaluations = read_run(run).evaluations
            rows = {"prompts_sha256": _sha256(run / "data" / "evaluation.jsonl"), "evaluations": evaluations}
            (partial / "evaluation.json").write_text(json.dumps(rows))
            manifest["files"] = {
                str(p.relative_to(partial)): _sha256(p) for p in sorted(partial.rglob("*")) if p.is_file()
            }
            (partial / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False))
            (partial / "README.md").write_text(model_card(manifest, evaluations[-1]["domains"]))
            os.rename(partial, final)
            link = registry / ".champion-partial"
            link.unlink(missing_ok=True)
            link.symlink_to(Path("versions") / final.name)
            os.replace(link, registry / "champion")
        _decide(comparison, registry, f"promoted as version {number}", decided_by)
    return final


def keep_back(comparison: Comparison, registry: Path, decided_by: str) -> None:
    """Write down that the champion stays. Raises: RunError."""
    with locked(registry):
        _decide(comparison, registry, "kept back", decided_by)


def champion_of(registry: Path) -> Path | None:
    """The folder of the champion's version; None while there is none."""
    link = registry / "champion"
    return link.resolve() if link.exists() else None


def by_prompt(domains: Mapping[str, Any]) -> dict[str, float]:
    """pass@1 of each prompt of an evaluation; a prompt is named by its domain and id."""
    return {f"{d}/{p}": float(v) for d, row in domains.items() for p, v in row.get("by_prompt", [])}


def evaluate_on(model: Path, run: Path) -> dict[str, Any]:
    """What `model` reaches on the held-out rows of `run`, as its recipe evaluates."""
    from pipeline.stages.train import evaluate_model

    rows = {name: json.dumps([{"file": str(run / "data" / f"{name}.jsonl")}]) for name in ("train", "evaluation")}
    sources = [f"data.{name}={text}" for name, text in rows.items()]
    request = read_request(run / "recipe.yaml", [*sources, f"model.path={json.dumps(str(model))}", "model.create=null"])
    return evaluate_model(request.config, request.base_dir)


def describe(comparison: Comparison, number: int, decided_by: str) -> dict[str, Any]:
    """The lineage of a version: what it was made from, with what, and why it was promoted."""
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
        "run": str(run),
        "parents": {"model": model, "champion": None if comparison.champion is None else comparison.champion.name},
        "data": {p.name: _sha256(p) for p in sorted((run / "data").glob("*.jsonl"))},
        "recipe": _sha256(run / "recipe.yaml"),
        "algorithm": None if recipe.rl is None else recipe.rl.algorithm["name"],
        "verifiers": _verifiers(run, recipe),
        "code": {"version": _package_version(), "commit": _commit()},
        "libraries": files.info.get("versions", {}),
    }


def model_card(manifest: Mapping[str, Any], domains: Mapping[str, Any]) -> str:
    """README.md of a version: what it is, what it reaches, what it came from."""
    rows = [
        f"| {name} | {row['pass@1']['value']:.3f} | {row['pass@1']['low']:.3f} to {row['pass@1']['high']:.3f} | "
        f"{row['num_prompts']} |"
        for name, row in sorted(domains.items())
        if "pass@1" in row
    ]
    parents, code = manifest["parents"], manifest["code"]
    data = [f"- `{name}` sha256 `{digest[:16]}…`" for name, digest in manifest["data"].items()]
    return "\n".join(
        [
            "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---",
            f"# {manifest['name']}, version {manifest['version']}",
            f"Trained with verifiable rewards ({manifest['algorithm'] or 'SFT alone'}), from `{parents['model']}`"
            + (
                f"; took the place of version {parents['champion']}." if parents["champion"] else "; the first version."
            ),
            "\n| domain | pass@1 | 95% interval | prompts |\n| --- | --- | --- | --- |",
            *rows,
            f"\nPromoted {manifest['promoted']} by {manifest['decided_by']}. The recipe is `recipe.yaml`; graded by "
            f"{', '.join(manifest['verifiers']) or 'no verifier'}; made by verizero {code['version']}"
            + (f" at {code['commit'][:12]}." if code["commit"] else "."),
            "\nData:\n",
            *data,
            "",
        ]
    )


def both_curves(comparison: Comparison) -> str:
    """Held-out pass@1 of champion and challenger at each evaluation of their runs, as a picture for markdown."""
    series = [_rates(read_run(comparison.run).evaluations)]
    if comparison.champion is not None:
        series.append(_rates(json.loads((comparison.champion / "evaluation.json").read_text())["evaluations"]))
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


def _rates(evaluations: list[dict[str, Any]]) -> list[float | None]:
    found = []
    for row in evaluations:
        rates = [d["pass@1"]["value"] for d in row["domains"].values() if "pass@1" in d]
        found.append(fmean(rates) if rates else None)
    return found


def _evaluation_of(champion: Path, run: Path, ours: Mapping[str, float], evaluate: Evaluate) -> Mapping[str, Any]:
    """The champion's evaluation on the run's prompts: its own where the rows and the prompts chosen are the same."""
    own = json.loads((champion / "evaluation.json").read_text())
    last: Mapping[str, Any] = own["evaluations"][-1]["domains"]
    if own["prompts_sha256"] == _sha256(run / "data" / "evaluation.jsonl") and by_prompt(last).keys() == ours.keys():
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
    write_atomic(path, before + json.dumps(line).encode() + b"\n")


def _verifiers(run: Path, recipe: RunConfig) -> dict[str, str]:
    """Each verifier among the rows, with the hash of the file that its function is in."""
    names = {row.get("verifier") for path in (run / "data").glob("*.jsonl") for row in iterate_jsonl(path)}
    found = {}
    for name in sorted(str(n) for n in names if n):
        choice = recipe.data.verifiers.get(name)
        try:
            verifier = load(name) if choice is None else load(choice.name, choice.path)
        except ConfigError:
            found[name] = ""  # a path from another folder: its file is not to be found from here
            continue
        module = sys.modules.get(verifier.module)
        found[name] = _sha256(Path(getattr(module, "__file__", None) or ""))
    return found


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
