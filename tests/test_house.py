"""The rules of the house, read from the files themselves: who imports whom, names, recipes, words."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from tests.source import (
    CODE,
    PACKAGE,
    ROOT,
    all_files,
    code_files,
    dotted,
    imported_by,
    imports_of,
    relative,
    stubs,
)
from tests.style import cycle, findings, import_graph, sources

RANKS = {
    part: int(rank)
    for rank, parts in re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    for part in re.findall(r"`([\w.]+)`", parts)
}
"""Part -> rank, out of the table that people read."""
UPWARD = {
    (
        "pipeline.registry",
        "pipeline.errors",
    ): "an unknown name is one of the errors; errors import nothing",
    (
        "pipeline.registry",
        "pipeline.near",
    ): "an unknown name answers with those near to it; near imports nothing",
    ("verifiers", "pipeline.models"): "a reward model takes its turn with torch's switch, when it is called",
    ("pipeline.environments", "verifiers"): "the tools and the environment `sql` read and compare as the verifier does",
    ("pipeline.commands", "flows"): "`train`, `serve` and `deploy` import a flow when they run, never to load",
}
"""Imports that are not from a lower rank, each with its reason."""

ONE_IMPORTER: dict[str, str | None] = {
    "deepspeed": "pipeline/train/deepspeed_trained.py",
    "peft": "pipeline/models/lora.py",
    "bitsandbytes": "pipeline/models/quantized.py",
    "math_verify": None,
}
"""library -> the one module that may import it; None: whichever it is."""
ONE_FOLDER = {"triton": "pipeline/models/kernels/", "vllm": "pipeline/rollout/vllm_"}
"""library -> the beginning of the paths of the files that alone may import it."""
PREFECT_PROBE = "pipeline/checks/machine.py"
"""Besides flows/: it tries whether Prefect's server imports here, which some pairs of releases do not."""
STANDARD_ONLY = 0
OF_THE_LIBRARY = ("tests/environments/verifiers_tasks/",)
"""What imports the library `verifiers`, whose name one of our folders has too."""
ABSTRACT: dict[str, str] = {
    "verifiers/instructions.py:holds": "the one abstract method of the constraints' base",
}
"""file:function -> why it does nothing."""
RESERVED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
PRIVATE_WORDS = re.compile(
    # The first letters once, as to try each word at each place of every file takes two seconds.
    r"\b(?=[acilst])(?:claude|anthropic|chatgpt|copilot|LLM agent|sub-?agents?|issues? #?\d+|shared/guide"
    r"|this workplace|the brief|this session)\b|\(#\d+\)",
    re.IGNORECASE,
)
OF_A_CLIENT = {"requirements/gpu.txt"}
"""Files that name the package of a client that vLLM needs."""
MACHINE_PATHS = re.compile(r"""(?<![\w.$}~])/(?:work|root|home/\w+|Users/\w+|mnt/\w+)/[\w.]""")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
SANDBOX_HOME = "sandbox/"
"""Holds paths of the machine that programs are shown, not of one that the project was written on."""


def part_of(module: str) -> str | None:
    """The part of the house that a dotted name belongs to; None for what is not ours."""
    package, top, *rest = [*module.split("."), "", ""]
    if package != PACKAGE:
        return None
    if top in ("verifiers", "sandbox", "flows"):
        return top
    if top == "pipeline":
        return f"pipeline.{rest[0]}" if rest[0] else "pipeline"
    return PACKAGE


def wrong_imports(source: str, module: str) -> list[str]:
    """What a file of that name imports and may not, in words."""
    own = part_of(module)
    assert own is not None
    found = []
    for imported in imports_of(source, module):
        other = part_of(imported.module)
        if other is None or other == own or other == "pipeline":
            continue
        if other not in RANKS:
            found.append(f"{module}:{imported.line} imports {imported.module}, which has no rank")
        elif RANKS[other] >= RANKS[own] and (own, other) not in UPWARD:
            found.append(
                f"{module}:{imported.line} (rank {RANKS[own]}) imports {imported.module} (rank {RANKS[other]})"
            )
    return found


class TestWhoImportsWhom:
    @pytest.mark.parametrize(
        ("source", "module", "wrong"),
        [
            ("from verizero.pipeline.errors import X", "verizero.pipeline.rl.kl", 0),
            ("from verizero.pipeline.stages import rl", "verizero.pipeline.rl.kl", 1),
            ("def f():\n    import verizero.pipeline.train.step", "verizero.verifiers.math", 1),
            ("from verizero.pipeline import config", "verizero.pipeline.rl.kl", 1),
            ("from .. import scoring", "verizero.pipeline.rl.kl", 1),
            ("from ..errors import X", "verizero.pipeline.rl.kl", 0),
            ("from .other import x", "verizero.pipeline.rl.kl", 0),
            ("import importlib\nimportlib.import_module('verizero.flows.local')", "verizero.pipeline.stages.rl", 1),
            (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from verizero import flows",
                "verizero.pipeline.rl.kl",
                0,
            ),
            ("if TYPE_CHECKING:\n    pass\nelse:\n    from verizero import flows", "verizero.pipeline.rl.kl", 1),
            ("import verizero.pipeline.train\nimport verizero.pipeline.data", "verizero.pipeline.report.page", 2),
            ("import verizero.pipeline.brandnew", "verizero.pipeline.cli", 1),
        ],
    )
    def test_the_reader_of_imports_sees_what_it_should(self, source: str, module: str, wrong: int) -> None:
        assert len(wrong_imports(source, module)) == wrong

    def test_from_a_lower_rank_only(self) -> None:
        assert [w for p in code_files() for w in wrong_imports(p.read_text(), dotted(p))] == []

    def test_no_file_imports_in_a_circle(self) -> None:
        assert cycle(import_graph(sources())) == []

    def test_every_file_belongs_to_a_part_with_a_rank(self) -> None:
        lost = [dotted(p) for p in code_files() if part_of(dotted(p)) not in {*RANKS, "pipeline.__init__"}]
        assert lost == []

    def test_our_folders_are_imported_from_the_package_alone(self) -> None:
        """A module that is imported by two names exists twice: its classes and its state differ."""
        files = [p for p in all_files() if p.suffix == ".py" and not relative(p).startswith(OF_THE_LIBRARY)]
        tops = {relative(p): {i.module.split(".")[0] for i in imported_by(p)} & {*CODE, "configs"} for p in files}
        assert {path: names for path, names in tops.items() if names} == {}

    def test_no_exception_is_left_over(self) -> None:
        used = {(part_of(dotted(p)), part_of(i.module)) for p in code_files() for i in imported_by(p)}
        assert set(UPWARD) <= used

    def test_rank_0_loads_the_standard_library_only(self) -> None:
        for path in code_files():
            if RANKS.get(part_of(dotted(path)) or "") != STANDARD_ONLY:
                continue
            foreign = {i.module.split(".")[0] for i in imported_by(path)}
            assert foreign - {PACKAGE} <= set(sys.stdlib_module_names), relative(path)

    @pytest.mark.parametrize("library", sorted(ONE_IMPORTER))
    def test_one_module_imports_a_library(self, library: str) -> None:
        importers = {relative(p) for p in code_files() for i in imported_by(p) if i.module.split(".")[0] == library}
        only = ONE_IMPORTER[library]
        assert len(importers) <= 1 if only is None else importers <= {only}

    @pytest.mark.parametrize("library", sorted(ONE_FOLDER))
    def test_one_folder_imports_a_library(self, library: str) -> None:
        importers = {relative(p) for p in code_files() for i in imported_by(p) if i.module.split(".")[0] == library}
        assert importers
        assert {p for p in importers if not p.startswith(ONE_FOLDER[library])} == set()

    def test_only_flows_import_prefect(self) -> None:
        importers = {relative(p) for p in code_files() for i in imported_by(p) if i.module.split(".")[0] == "prefect"}
        assert {p for p in importers if not p.startswith("flows/")} <= {PREFECT_PROBE}

    @pytest.mark.run
    def test_verifiers_and_the_sandbox_load_no_torch(self) -> None:
        modules = [dotted(p) for p in code_files() if p.parts[len(ROOT.parts)] in ("verifiers", "sandbox")]
        modules = [m for m in modules if "._inside" not in m and ".worker" not in m]
        assert loaded_by(f"import importlib\nfor m in {modules!r}: importlib.import_module(m)") == set()

    @pytest.mark.run
    def test_types_and_the_command_line_load_no_torch(self) -> None:
        assert loaded_by("from verizero.pipeline import types, errors, registry, seeds") == set()
        assert loaded_by("import verizero.pipeline.cli; verizero.pipeline.cli.parser()") == set()
        assert loaded_by(EXPLAINED) == set()

    @pytest.mark.run
    def test_recipes_load_without_torch(self) -> None:
        paths = [str(p) for p in recipes()]
        code = f"from verizero.pipeline.config.load import load_recipe\nfor p in {paths!r}: load_recipe(p)"
        assert loaded_by(code) == set()

    @pytest.mark.run
    def test_the_flow_of_a_group_of_ranks_loads_no_torch(self) -> None:
        assert loaded_by(WAITS) == {"prefect"}

    def test_verifiers_is_our_package(self) -> None:
        from verizero import verifiers

        assert verifiers.__file__ == str(ROOT / PACKAGE / "verifiers" / "__init__.py")


EXPLAINED = """
from verizero.pipeline.commands.check import objectives
from verizero.pipeline.config.load import load_recipe
objectives(load_recipe("configs/demo.yaml"))
"""
WAITS = """
import tempfile
from verizero.flows import forms
from verizero.pipeline.config.recipes import request_of

def ended(launch, words, folder, look):
    folder.mkdir()
    (folder / "summary.json").write_text("{}")

forms.launch, forms.show_result = ended, lambda *_: None
group = {"launch.kind": "torchrun", "launch.gpus_per_node": 2, "output": tempfile.mkdtemp()}
assert forms.run_request(request_of("demo", overrides=group), "auto", None) == {}
"""


def loaded_by(code: str) -> set[str]:
    """Which heavy libraries a fresh interpreter has loaded after the code."""
    heavy = ("torch", "transformers", "prefect", "vllm", "deepspeed", "tensorboard", "datasets")
    said = f"{code}\nimport sys\nprint('loaded', *[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True)
    word, *found = done.stdout.split()
    assert word == "loaded"
    return set(found)


def recipes() -> list[Path]:
    """Every recipe; configs/data holds column mappings, configs/suites suites."""
    configs = ROOT / "configs"
    return sorted(p for p in configs.rglob("*.yaml") if p.parent.name not in ("data", "suites"))


class TestNames:
    def test_no_module_is_a_drawer_for_everything(self) -> None:
        files = [*code_files(), *(ROOT / "tests").rglob("*.py")]
        assert [relative(p) for p in files if {p.stem, *p.relative_to(ROOT).parts} & RESERVED_NAMES] == []

    def test_no_function_is_a_stub(self) -> None:
        found = {f"{relative(p)}:{name}" for p in code_files() for name in stubs(p.read_text())}
        assert found == set(ABSTRACT)

    @pytest.mark.parametrize(
        ("source", "names"),
        [
            ("def f():\n    ...", ["f"]),
            ('def f():\n    """Nothing is held."""', []),
            ('def f():\n    """Says."""\n    raise NotImplementedError', ["f"]),
            ("class A:\n    def f(self):\n        raise NotImplementedError('later')", ["f"]),
            ("def f():\n    pass\ndef g():\n    return 1", ["f"]),
            ("class A(Protocol[T]):\n    def f(self): ...", []),
            ("@overload\ndef f(): ...", []),
            ("def f():\n    pass\n    return 1", []),
        ],
    )
    def test_a_stub_is_seen(self, source: str, names: list[str]) -> None:
        assert stubs(source) == names


class TestRecipes:
    def test_a_recipe_opens_with_what_it_shows_and_the_hardware(self) -> None:
        for path in recipes():
            said = "\n".join(takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
            assert re.search(r"^# Shows:\s+\S", said, re.MULTILINE), path
            assert re.search(r"^# Hardware:\s+\S", said, re.MULTILINE), path

    def test_there_are_recipes_and_each_mapping_is_one(self) -> None:
        from verizero.pipeline.config.data import MAPPINGS, ColumnMapping, shipped_mapping

        assert len(recipes()) > 3
        names = sorted(p.stem for p in MAPPINGS.glob("*.yaml"))
        assert names
        for name in names:
            ColumnMapping.model_validate(shipped_mapping(name))


class TestWords:
    def test_docstrings_messages_and_pages_are_plain_english(self) -> None:
        assert list(findings(all_files())) == []

    def test_nothing_is_left_unfinished(self) -> None:
        assert found_in(UNFINISHED) == []

    def test_the_project_speaks_of_itself_only(self) -> None:
        assert [hit for hit in found_in(PRIVATE_WORDS) if hit.split(":")[0] not in OF_A_CLIENT] == []

    def test_no_path_of_one_machine(self) -> None:
        assert [hit for hit in found_in(MACHINE_PATHS) if not hit.startswith(SANDBOX_HOME)] == []

    @pytest.mark.parametrize(
        ("pattern", "text"),
        [
            (UNFINISHED, "# TODO: later"),
            (UNFINISHED, "# FIXME"),
            (PRIVATE_WORDS, "see issue 12"),
            (PRIVATE_WORDS, "fixed (#7)"),
            (PRIVATE_WORDS, "as Claude wrote"),
            (MACHINE_PATHS, "open('/work/main/x')"),
            (MACHINE_PATHS, "/root/.cache"),
            (MACHINE_PATHS, "see /home/ann/x"),
        ],
    )
    def test_the_patterns_find_what_they_are_for(self, pattern: re.Pattern[str], text: str) -> None:
        assert pattern.search(text)


def found_in(pattern: re.Pattern[str]) -> list[str]:
    """file:line: text of every line that has the pattern, in every kept file but this one and the licence."""
    hits = []
    for path in all_files():
        if path == Path(__file__).resolve() or path.name == "LICENSE":
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if not pattern.search(text):  # then no line has it, and to search each takes three times as long
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                hits.append(f"{relative(path)}:{number}: {line.strip()[:120]}")
    return hits
