"""What `train.backend: auto` means: FSDP for several ranks on GPUs, torch's backend elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stages.tiny import TREE
from verizero.pipeline.config.backend import with_backend
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.merge import merge
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.train.torch_backend import TorchBackend


def chosen(num_ranks: int, device: str, **changes: Any) -> str:
    return with_backend(parse(merge(TREE, changes)), num_ranks, device).train.backend


@pytest.mark.parametrize(
    ("num_ranks", "device", "wanted"),
    [(1, "cpu", "torch"), (2, "cpu", "torch"), (1, "cuda:0", "torch"), (2, "cuda:1", "fsdp"), (64, "cuda", "fsdp")],
)
def test_several_ranks_on_gpus_divide_the_policy(num_ranks: int, device: str, wanted: str) -> None:
    assert chosen(num_ranks, device) == wanted
    assert chosen(num_ranks, device, train={"lora": {"rank": 2}}) == wanted


@pytest.mark.parametrize("backend", ["torch", "fsdp", "deepspeed"])
def test_a_backend_that_the_recipe_names_stays(backend: str) -> None:
    assert chosen(1, "cpu", train={"backend": backend}) == backend
    assert chosen(8, "cuda", train={"backend": backend}) == backend


def test_a_run_that_keeps_older_weights_is_torch_s() -> None:
    assert chosen(8, "cuda", rollout={"publish_every": 2}) == "torch"
    with pytest.raises(ConfigError, match=r"publish_every=2 keeps a copy .* train\.backend='fsdp' does not"):
        chosen(8, "cuda", rollout={"publish_every": 2}, train={"backend": "fsdp"})


def test_auto_has_what_every_backend_has() -> None:
    with pytest.raises(ConfigError, match=r"train\.offload=optimizer with train\.backend=auto"):
        chosen(8, "cuda", train={"offload": "optimizer"})
    with pytest.raises(ConfigError, match=r"train\.zero=1 with train\.backend=auto"):
        chosen(8, "cuda", train={"zero": 1})


def test_an_open_run_has_a_backend_of_its_own(tmp_path: Path) -> None:
    with open_run(parse(TREE), tmp_path, tmp_path / "run", "auto", Silent()) as session:
        assert session.run.recipe.train.backend == "torch"
        assert isinstance(session.workers.backend, TorchBackend)
