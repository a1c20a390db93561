"""Names to plug-ins: files, entry points, and what is neither."""

import importlib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import verizero.pipeline.algorithms
from verizero import verifiers
from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError, UnknownName

FOLDERS = [
    ("algorithms", Path(verizero.pipeline.algorithms.__path__[0])),
    ("verifiers", Path(verifiers.__path__[0])),
]


@pytest.mark.parametrize(("kind", "folder"), FOLDERS)
def test_every_file_but_the_base_and_private_ones_is_a_plug_in(kind, folder):
    files = {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")} - {"base"}
    known = registry.names(kind)
    assert len(known) == len(set(known))
    for file in sorted(files)[:8]:
        module = importlib.import_module(f"{registry.PACKAGES[kind]}.{file}")
        for name, plugin in getattr(module, "PLUGINS", {file: module}).items():
            assert name in known
            assert registry.find(kind, name) is plugin


def folders_in(folder):
    return [p.name for p in folder.iterdir() if (p / "__init__.py").is_file()]


@pytest.mark.parametrize(("kind", "folder"), FOLDERS)
def test_what_stands_beside_plug_ins_is_none(kind, folder):
    private = [p.stem for p in folder.glob("_*.py")]
    assert kind != "verifiers" or folders_in(folder), "one of the names that are none"
    for name in ["base", *private, *folders_in(folder), "", "os.path", "../base", "grpo ", "a-b", "é", "x" * 300]:
        assert name not in registry.names(kind)
        with pytest.raises(UnknownName, match=kind[:-1]):
            registry.find(kind, name)


def test_where_nothing_is_near_all_are_named():
    with pytest.raises(UnknownName) as caught:
        registry.find("algorithms", "zzzzzzzz")
    assert all(name in str(caught.value) for name in registry.names("algorithms"))


def install(monkeypatch, *entries):
    def installed(kind, path):
        return [EntryPoint(name, value, f"verizero.{kind}") for name, value in entries if kind == "verifiers"]

    monkeypatch.setattr(registry, "_installed", installed)


@pytest.mark.parametrize("entries", [[("math", "a:b")], [("x", "a:b"), ("x", "c:d")]])
def test_a_name_claimed_twice_is_refused_with_its_claimants(entries, monkeypatch):
    install(monkeypatch, *entries)
    with pytest.raises(ConfigError, match="a:b"):
        registry.find("verifiers", entries[0][0])
