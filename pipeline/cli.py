"""The command line: verizero train, evaluate, rate, verify, audit, explain, plan, compare, report, doctor …"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.recipes import find_recipe
from pipeline.errors import ConfigError, DataError, IsolationError, VerizeroError
from pipeline.commands.serve import add_commands

if TYPE_CHECKING:
    from pipeline.config.run import RunConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of the command: 0 done, 1 an error that was explained, 2 a wrong command line, 130 interrupted."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except VerizeroError as exc:
        print(f"verizero: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nverizero: stopped. The same command goes on from the last checkpoint.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader left; without this, Python's own flush at exit complains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="verizero", description=__doc__, allow_abbrev=False)
    commands = top.add_subparsers(required=True, metavar="command")

    train = commands.add_parser("train", help="run a recipe: data, SFT, RL rounds, evaluation, report")
    _recipe(train)
    train.add_argument("--stages", help="only these stages of the recipe, e.g. sft,rl")
    train.add_argument("--resume", choices=("auto", "never", "must"), default="auto", help="default: auto")
    train.add_argument("--no-prefect", action="store_true", help="run in this process, without an orchestrator")
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="evaluate a model on a recipe's held-out prompts")
    _recipe(evaluate)
    evaluate.add_argument("--model", help="a Hugging Face folder; default: the recipe's own model")
    evaluate.set_defaults(run=_evaluate)

    rate = commands.add_parser("rate", help="how often a model answers each training prompt right, written as rows")
    _recipe(rate)
    rate.add_argument("--model", help="a Hugging Face folder; default: the recipe's own model")
    rate.add_argument("-n", "--samples", type=int, default=8, help="responses a prompt; default: 8")
    rate.add_argument("--out", type=Path, default=Path("rated.jsonl"), help="goes on where it ends; rated.jsonl")
    rate.set_defaults(run=_rate)

    _grading_commands(commands)

    _paper_commands(commands)

    compare = commands.add_parser("compare", help="recipes side by side from the same start; one page of what came")
    compare.add_argument("recipes", nargs="+", help="YAML files, or names of recipes in configs/")
    compare.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a field of each")
    compare.add_argument("--seeds", type=int, default=3, help="runs of each recipe; default: 3")
    compare.add_argument(
        "--from", dest="start", type=Path, help="a Hugging Face folder; default: made by SFT, once a seed"
    )
    compare.add_argument("--tokens", type=int, help="generated tokens of each run; default: as many as its rounds take")
    compare.add_argument("--folder", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    compare.set_defaults(run=_compare)

    report = commands.add_parser("report", help="rebuild report.html and summary.json from a run's files")
    report.add_argument("folder", type=Path, help="e.g. runs/demo")
    report.set_defaults(run=_report)

    doctor = commands.add_parser("doctor", help="what is installed, what works here, and what to install")
    doctor.add_argument("recipe", nargs="?", help="what it needs is required too; a YAML file, or a name in configs/")
    doctor.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a field; repeatable")
    doctor.set_defaults(run=_doctor)

    _sandbox_commands(commands)

    add_commands(commands)

    new = commands.add_parser("new", help="write a new verifier with its tests and a recipe")
    new.add_argument("kind", choices=("verifier",))
    new.add_argument("name")
    new.add_argument("--folder", type=Path, default=Path(), help="default: the working folder")
    new.set_defaults(run=_new)
    for command in commands.choices.values():
        command.allow_abbrev = False  # `--no-pre` would train in a way that nobody asked for
    return top


def _paper_commands(commands: Any) -> None:
    explain = commands.add_parser("explain", help="the objective of a recipe as a formula with its numbers")
    _recipe(explain)
    explain.set_defaults(run=_explain)

    plan = commands.add_parser("plan", help="memory, time and cost of a recipe on some GPUs, before it runs there")
    _recipe(plan)
    plan.add_argument("--gpus", type=int, default=8, help="default: 8")
    plan.add_argument("--gpu", default="h100", help="l4, rtx4090, a100, h100, h200 or b200; default: h100")
    plan.add_argument("--price", type=float, help="of one GPU for one hour, for the cost of 1,000 steps")
    plan.add_argument("--mean-share", type=float, default=0.5, help="mean length of a response over the longest; 0.5")
    plan.set_defaults(run=_plan)


def _grading_commands(commands: Any) -> None:
    verify = commands.add_parser("verify", help="grade JSONL rows {id, verifier, reference, response}")
    verify.add_argument("rows", nargs="?", type=Path, help="a file; default: standard input")
    verify.add_argument("--batch", type=int, default=1, help="rows graded together before lines are written")
    verify.add_argument("--verifier", help="for rows that name none; a name or file.py:function")
    verify.add_argument("--check", metavar="VERIFIER", help="prove a verifier on the rows instead (name or file.py:f)")
    verify.set_defaults(run=_verify)

    audit = commands.add_parser("audit", help="false positives and negatives of verifiers on labelled rows, and probes")
    audit.add_argument("rows", type=Path)
    audit.add_argument("--verifier", help="for rows that name none; a name or file.py:function")
    audit.add_argument("--second", help="a second verifier for a second opinion (name or file.py:function)")
    audit.add_argument("--save", type=Path, help="write disagreements and wrong verdicts here as JSONL")
    audit.set_defaults(run=_audit)


def _sandbox_commands(commands: Any) -> None:
    box = commands.add_parser("sandbox", help="run programs for other machines, or try the walls of this one")
    acts = box.add_subparsers(required=True, metavar="act")
    serve = acts.add_parser(
        "serve", help="run programs over HTTP; a recipe names it in sandbox.url", allow_abbrev=False
    )
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1; any but loopback needs a token")
    serve.add_argument("--port", type=int, default=8080, help="default: 8080; 0 is any that is free")
    serve.add_argument("--token-env", default="SANDBOX_TOKEN", help="variable that holds the token")
    serve.add_argument("--workers", type=int, help="programs at one time; default: two per core")
    serve.add_argument("--max-queue", type=int, default=1024, help="programs waiting before the answer is 429")
    serve.add_argument("--wall-s", type=float, help="most seconds of a test; requests can only lower limits")
    serve.add_argument("--cpu-s", type=float, help="most CPU seconds of a test")
    serve.add_argument("--memory-mib", type=int, help="most memory of a program")
    serve.add_argument("--output-kib", type=int, help="most output of a test")
    serve.set_defaults(run=_sandbox_serve)
    check = acts.add_parser("check", help="which walls stand here, by trying what each forbids", allow_abbrev=False)
    check.set_defaults(run=_sandbox_check)
    for command in (serve, check):
        command.add_argument("--min-level", type=int, default=2, choices=range(4), help="default: 2")


def _recipe(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", help="a YAML file, or the name of one in configs/")
    command.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a field; repeatable")


def _train(arguments: argparse.Namespace) -> int:
    from pipeline.config.load import load_recipe

    path = find_recipe(arguments.recipe)
    overrides = list(arguments.set)
    config = load_recipe(path, overrides, [name.strip() for name in (arguments.stages or "").split(",") if name])
    first = True
    if config.launch.kind != "none" or "RANK" in os.environ:
        from pipeline.launch import as_rank, is_rank, launch

        folder = Path.cwd() / config.output / config.name
        if not is_rank():
            launch(config.launch, _again(arguments), folder)
            _say_result(folder, json.loads((folder / "summary.json").read_text()))
            return 0
        first = as_rank(config.launch, folder) == 0
    if arguments.no_prefect or not first:
        from pipeline.models.load import quiet
        from pipeline.report.progress import for_terminal
        from pipeline.stages.train import run_folder, train

        quiet()
        folder = run_folder(config)
        summary = train(config, path.resolve().parent, folder, arguments.resume, for_terminal())
    else:
        from flows.local import run_here

        folder, summary = run_here(config, path.resolve().parent, arguments.resume)
    if config.launch.kind == "none" and first:
        _say_result(folder, summary)
    return 0


def _again(arguments: argparse.Namespace) -> list[str]:
    """The words of this `train` command, for each rank."""
    words = ["train", arguments.recipe, "--resume", arguments.resume]
    words += [w for change in arguments.set for w in ("--set", change)]
    words += ["--stages", arguments.stages] if arguments.stages else []
    return [*words, *(["--no-prefect"] if arguments.no_prefect else [])]


def _say_result(folder: Path, summary: dict[str, object]) -> None:
    from pipeline.report.result import result_lines

    for line in result_lines(summary):
        print(line)
    print(f"report: {folder / 'report.html'}")
    print(f"model:  {folder / 'model'}")


def _rate(arguments: argparse.Namespace) -> int:
    from pipeline.models.load import quiet
    from pipeline.stages.progress import Lines
    from pipeline.commands.rate import rate

    quiet()
    config, base = _with_model(arguments)
    print(rate(config, base, arguments.out, arguments.samples, Lines()))
    return 0


def _with_model(arguments: argparse.Namespace) -> tuple[RunConfig, Path]:
    """The recipe, of another model where one is named, and its folder."""
    from pipeline.config.load import load_recipe

    path = find_recipe(arguments.recipe)
    overrides = list(arguments.set)
    if arguments.model:
        overrides += [f"model.path={json.dumps(arguments.model)}", "model.create=null"]
    return load_recipe(path, overrides), path.resolve().parent


def _evaluate(arguments: argparse.Namespace) -> int:
    from pipeline.models.load import quiet
    from pipeline.report.progress import Lines
    from pipeline.stages.train import evaluate_model

    quiet()
    domains = evaluate_model(*_with_model(arguments), Lines())
    print(json.dumps(domains, indent=1))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from pipeline.scoring.check import check
    from pipeline.scoring.rows import Defaults
    from pipeline.scoring.verify import verify

    _any_text_passes()
    chosen = arguments.check or arguments.verifier
    defaults = Defaults(verifier=chosen) if chosen else None
    if arguments.check:
        if arguments.rows is None:
            print("verizero: --check needs a file of rows", file=sys.stderr)
            return 2
        report = check(arguments.check, arguments.rows)
        print(report)
        return 0 if report.passed else 1
    if arguments.rows is None:
        done = verify(sys.stdin, sys.stdout, batch=arguments.batch, defaults=defaults)
    else:
        try:
            lines = arguments.rows.open(encoding="utf-8", errors="replace")
        except OSError as exc:
            raise DataError(f"{arguments.rows}: {exc.strerror or exc}; give a file of JSON lines") from exc
        with lines:
            done = verify(lines, sys.stdout, batch=arguments.batch, defaults=defaults)
    return 1 if done.bad_lines else 0


def _any_text_passes() -> None:
    """Rows come from models: a byte that is no UTF-8, or half a surrogate pair, must not end the stream.

    Half a pair is written as the escape that JSON has for it.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def _audit(arguments: argparse.Namespace) -> int:
    from pipeline.scoring.audit import audit, save_cases
    from pipeline.scoring.rows import Defaults, good_rows

    defaults = Defaults(verifier=arguments.verifier) if arguments.verifier else None
    report = audit(good_rows(arguments.rows, defaults), second=arguments.second)
    print(report)
    if arguments.save:
        save_cases(report, arguments.save)
    return 0 if report.passed else 1


def _explain(arguments: argparse.Namespace) -> int:
    from pipeline.config.load import load_recipe
    from pipeline.commands.explain import explain_recipe

    print(explain_recipe(load_recipe(find_recipe(arguments.recipe), arguments.set)))
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from pipeline.config.load import load_recipe
    from pipeline.commands.plan.estimate import plan_lines, plans

    config = load_recipe(find_recipe(arguments.recipe), arguments.set)
    found = plans(config, arguments.gpus, arguments.gpu, arguments.mean_share)
    for name, one in found.items():
        print("\n".join([*([f"stage {name}"] if len(found) > 1 else []), *plan_lines(one, arguments.price)]))
    return 0 if all(one.fits for one in found.values()) else 1


def _compare(arguments: argparse.Namespace) -> int:
    from pipeline.report.compare_page import text_table
    from pipeline.commands.compare import compare

    rows = compare(
        [find_recipe(name) for name in arguments.recipes],
        arguments.folder,
        overrides=arguments.set,
        seeds=arguments.seeds,
        start=arguments.start,
        max_tokens=arguments.tokens,
    )
    print(text_table(rows))
    print(f"page: {arguments.folder / 'compare.html'}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from pipeline.report.page import build_page
    from pipeline.report.summary import build_summary

    summary = build_summary(arguments.folder)
    build_page(arguments.folder)
    _say_result(arguments.folder, summary)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from pipeline.config.load import load_recipe
    from pipeline.commands.doctor import examine

    path = find_recipe(arguments.recipe) if arguments.recipe else None
    report = examine(load_recipe(path, arguments.set), path.parent) if path else examine()
    print(report)
    return 0 if report.is_usable else 1


def _sandbox_serve(arguments: argparse.Namespace) -> int:
    import sandbox
    from sandbox.serve import make_server

    names = ("wall_s", "cpu_s", "memory_mib", "output_kib")
    given = {n: value for n in names if (value := getattr(arguments, n)) is not None}
    host, port, token = arguments.host, arguments.port, os.environ.get(arguments.token_env)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its workers are ended and not left
    try:
        with sandbox.Pool(arguments.workers, arguments.min_level) as pool:
            server = make_server(pool, host, port, token, arguments.max_queue, sandbox.Limits(**given))
            print(f"sandbox at level {pool.isolation.level} on http://{host}:{server.server_port}", flush=True)
            with server, contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
    except ValueError as exc:
        raise ConfigError(f"{exc} (the token is read from {arguments.token_env})") from exc
    except OSError as exc:
        raise ConfigError(f"cannot serve on {host}:{port}: {exc.strerror or exc}; choose another --port") from exc
    return 0


def _sandbox_check(arguments: argparse.Namespace) -> int:
    import sandbox
    from pipeline.commands.doctor import walls

    for finding in walls():
        print(finding)
    try:
        with sandbox.Pool(workers=1, min_level=arguments.min_level) as pool:
            print(f"programs run here at level {pool.isolation.level}")
    except IsolationError as exc:
        print(exc)
        return 1
    return 0


def _new(arguments: argparse.Namespace) -> int:
    from pipeline.scoring.scaffold import new_verifier

    for path in new_verifier(arguments.name, arguments.folder):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
