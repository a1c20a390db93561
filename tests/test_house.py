"""The rules of the house, read from the files themselves: who imports whom, names, recipes, words."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.test_load import RECIPES
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
    ("pipeline.api", "pipeline.commands"): "`try_out`, `evaluate` and `diagnose` show what the commands show",
    ("pipeline.commands", "flows"): "`train`, `serve` and `deploy` import a flow when they run, never to load",
}
"""Imports that are not from a lower rank, each with its reason."""

IMPORTERS = {
    "deepspeed": ("pipeline/train/deepspeed_trained.py",),
    "peft": ("pipeline/models/lora.py",),
    "bitsandbytes": ("pipeline/models/quantized.py",),
    "math_verify": ("verifiers/mathematics/decide/algebra_process.py",),
    "triton": ("pipeline/models/kernels/",),
    "vllm": ("pipeline/rollout/vllm_",),
    # doctor tries whether Prefect's server imports here, which some pairs of releases do not
    "prefect": ("flows/", "pipeline/checks/machine.py"),
}
"""library -> the beginnings of the paths of the files that alone may import it."""
STANDARD_ONLY = 0
OF_THE_LIBRARY = ("tests/environments/verifiers_tasks/",)
"""What imports the library `verifiers`, whose name one of our folders has too."""
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


def part_of(module):
    """The part of the house that a dotted name belongs to; None for what is not ours."""
    package, top, *rest = [*module.split("."), "", ""]
    if package != PACKAGE:
        return None
    if top in ("verifiers", "sandbox", "flows"):
        return top
    if top == "pipeline":
        return f"pipeline.{rest[0]}" if rest[0] else "pipeline"
    return PACKAGE


def wrong_imports(source, module):
    """What a file of that name imports and may not, in words."""
    own = part_of(module)
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
            ("def f():\n    import verizero.pipeline.train.step", "verizero.verifiers.math", 1),
            ("from .. import scoring\nfrom ..errors import X\nfrom .other import x", "verizero.pipeline.rl.kl", 1),
            ("if TYPE_CHECKING:\n    from verizero import flows", "verizero.pipeline.rl.kl", 0),
            ("if TYPE_CHECKING:\n    pass\nelse:\n    from verizero import flows", "verizero.pipeline.rl.kl", 1),
            ("import verizero.pipeline.train\nimport verizero.pipeline.data", "verizero.pipeline.report.page", 2),
            ("import verizero.pipeline.brandnew", "verizero.pipeline.cli", 1),
        ],
    )
    def test_the_reader_of_imports_sees_what_it_should(self, source, module, wrong):
        assert len(wrong_imports(source, module)) == wrong

    def test_from_a_lower_rank_only(self):
        assert [w for p in code_files() for w in wrong_imports(p.read_text(), dotted(p))] == []

    def test_no_file_imports_in_a_circle(self):
        assert cycle(import_graph(sources())) == []

    def test_every_file_belongs_to_a_part_with_a_rank(self):
        lost = [dotted(p) for p in code_files() if part_of(dotted(p)) not in {*RANKS, "pipeline.__init__"}]
        assert lost == []

    def test_our_folders_are_imported_from_the_package_alone(self):
        """A module that is imported by two names exists twice: its classes and its state differ."""
        files = [p for p in all_files() if p.suffix == ".py" and not relative(p).startswith(OF_THE_LIBRARY)]
        tops = {relative(p): {i.module.split(".")[0] for i in imported_by(p)} & {*CODE, "configs"} for p in files}
        assert {path: names for path, names in tops.items() if names} == {}

    def test_no_exception_is_left_over(self):
        used = {(part_of(dotted(p)), part_of(i.module)) for p in code_files() for i in imported_by(p)}
        assert set(UPWARD) <= used

    def test_rank_0_loads_the_standard_library_only(self):
        for path in code_files():
            if RANKS.get(part_of(dotted(path)) or "") != STANDARD_ONLY:
                continue
            foreign = {i.module.split(".")[0] for i in imported_by(path)}
            assert foreign - {PACKAGE} <= set(sys.stdlib_module_names), relative(path)

    @pytest.mark.parametrize("library", IMPORTERS)
    def test_few_modules_import_a_library(self, library):
        importers = {relative(p) for p in code_files() for i in imported_by(p) if i.module.split(".")[0] == library}
        assert importers
        assert {p for p in importers if not p.startswith(IMPORTERS[library])} == set()

    @pytest.mark.run
    def test_verifiers_the_sandbox_the_command_line_and_recipes_load_no_torch(self):
        modules = [dotted(p) for p in code_files() if p.parts[len(ROOT.parts)] in ("verifiers", "sandbox")]
        modules = [m for m in modules if "._inside" not in m and ".worker" not in m]
        assert loaded_by(LIGHT.format(modules=modules, paths=[str(p) for p in RECIPES])) == set()

    @pytest.mark.run
    def test_the_flow_of_a_group_of_ranks_loads_no_torch(self):
        assert loaded_by(WAITS) == {"prefect"}


LIGHT = """
import importlib
for module in {modules!r}: importlib.import_module(module)
import verizero.pipeline.cli, verizero.pipeline.report.trackers.base
verizero.pipeline.cli.parser()
from verizero.pipeline.commands.check import objectives
from verizero.pipeline.config.load import load_recipe
for path in {paths!r}: load_recipe(path)
objectives(load_recipe("configs/demo.yaml"))
"""
WAITS = """
import tempfile
from verizero.flows import forms
from verizero.pipeline.config.recipes import request_of

def ended(launch, words, folder, look):
    folder.mkdir()
    (folder / "summary.json").write_text("{}")

forms.launch, forms.show_result = ended, lambda config, folder, summary: summary
group = {"launch.kind": "torchrun", "launch.gpus_per_node": 2, "output": tempfile.mkdtemp()}
assert forms.run_request(request_of("demo", overrides=group), "auto", None) == {}
"""


def loaded_by(code):
    heavy = ("torch", "transformers", "prefect", "vllm", "deepspeed", "tensorboard", "datasets", "wandb", "mlflow")
    said = f"{code}\nimport sys\nprint('loaded', *[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True)
    word, *found = done.stdout.split()
    assert word == "loaded"
    return set(found)


class TestNames:
    def test_no_module_is_a_drawer_for_everything(self):
        files = [*code_files(), *(ROOT / "tests").rglob("*.py")]
        assert [relative(p) for p in files if {p.stem, *p.relative_to(ROOT).parts} & RESERVED_NAMES] == []


class TestWords:
    def test_docstrings_messages_and_pages_are_plain_english(self):
        assert list(findings(all_files())) == []

    def test_nothing_is_left_unfinished(self):
        assert found_in(UNFINISHED) == []

    def test_the_project_speaks_of_itself_only(self):
        assert [hit for hit in found_in(PRIVATE_WORDS) if hit.split(":")[0] not in OF_A_CLIENT] == []

    def test_no_path_of_one_machine(self):
        assert [hit for hit in found_in(MACHINE_PATHS) if not hit.startswith(SANDBOX_HOME)] == []

    def test_the_patterns_find_what_they_are_for(self):
        text = "# TODO: later, see issue 12, fixed (#7), open('/work/main/x') and /home/ann/x"
        assert [len(p.findall(text)) for p in (UNFINISHED, PRIVATE_WORDS, MACHINE_PATHS)] == [1, 2, 2]


def found_in(pattern):
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
