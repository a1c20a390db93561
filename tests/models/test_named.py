"""Which names of models are paths, and what a name that leads nowhere costs."""

import socket

import pytest
from huggingface_hub import constants

from tests.stages.tiny import tiny
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import named
from verizero.pipeline.models.named import is_path, model_named
from verizero.pipeline.run.opening import first_of_node_first
from verizero.pipeline.train.ranks import Ranks


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Addresses that were asked for a connection, of which none answers; HF_HUB_OFFLINE is not set."""
    asked = []

    def refuse(address, timeout):
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    named._answers.cache_clear()
    return asked


@pytest.mark.parametrize(
    "name", ["./x", "../x", "/x", "~/x", "~", "a/b/c", "a\\b", "x.gguf", "a/x.safetensors", ".", "a b"]
)
def test_a_path_is_a_path(name):
    assert is_path(name)


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen3-0.6B", "org/name_1.5"])
def test_an_id_of_the_hub_is_none_unless_something_lies_there(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_path(name)
    (tmp_path / name).mkdir(parents=True)
    assert is_path(name)
    assert model_named(name) == name


@pytest.mark.parametrize(
    "name", ["./nomodel", "../nomodel", "/no/model", "a/b/nomodel", "model.safetensors", "nomodel"]
)
def test_a_path_where_nothing_is_never_asks_the_hub(name, asked, tmp_path, monkeypatch):
    (tmp_path / "empty" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "empty" / "here")
    with pytest.raises(ConfigError) as caught:
        model_named(name)
    assert f"model.path={name!r}: nothing is there; give a folder saved by save_pretrained" in str(caught.value)
    assert not asked


def test_what_is_near_is_named(asked, tmp_path):
    (tmp_path / "runs" / "demo" / "model").mkdir(parents=True)
    for name, near in (
        ("./rums", "runs"),
        ("runs/demp", "runs/demo"),
        ("demo", "runs/demo"),
        ("runs/demp/model", "runs/demo"),
    ):
        with pytest.raises(ConfigError, match=rf"did you mean {near}\?"):
            model_named(name)
    (tmp_path / "runs" / "demo" / "model" / "config.json").touch()
    with pytest.raises(ConfigError, match=r"'runs/demo' is the folder of a run; its model is runs/demo/model"):
        model_named("runs/demo")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"'notes.txt': that is no folder and no GGUF file"):
        model_named("notes.txt")


def test_a_hub_that_is_not_reached_is_asked_once(asked, monkeypatch):
    monkeypatch.setattr(named.time, "time", lambda: 1.0)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"'org/name': it is not on this machine, and the hub, \S+, is not reached"
        ):
            model_named("org/name")
    assert asked == [("huggingface.co", 443)]
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    with pytest.raises(ConfigError, match="connect this machine"):
        model_named("org/name")
    assert asked[1:] == [("proxy.example", 3128)]


def test_a_model_that_the_hub_left_here_is_found_without_it(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--org--name"
    kept = home / "snapshots" / "c0ffee"
    kept.mkdir(parents=True)
    (kept / "config.json").touch()
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("c0ffee")
    assert model_named("org/name") == str(kept)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_named("org/name") == str(kept)
    with pytest.raises(ConfigError, match="because HF_HUB_OFFLINE is set"):
        model_named("org/other")
    assert len(asked) == 1


@pytest.mark.parametrize("path", ["org/name", "/a/folder"])
def test_one_rank_of_a_node_asks_the_hub_and_the_others_wait_for_what_it_fetches(path, asked, monkeypatch):
    """Three ranks on two nodes, one after another: who came to the barrier, and what it had done by then."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    config, came = tiny(overrides=["model.create=null", f"model.path={path}"]), []
    for rank, place in ((0, "0"), (1, "1"), (2, "0")):
        done = []
        monkeypatch.setenv("LOCAL_RANK", place)
        monkeypatch.setattr(Ranks, "barrier", lambda self, done=done: came.append((self.rank, [*done])))
        with first_of_node_first(config, Ranks(rank, 3)):
            done.append((named.is_offline(), constants.is_offline_mode()))
        assert done == [(True, True) if path == "org/name" and place == "1" else (False, False)]
    assert came == ([(0, [(False, False)]), (1, []), (2, [(False, False)])] if path == "org/name" else [])
    assert not named.is_offline()
    assert not constants.is_offline_mode()
