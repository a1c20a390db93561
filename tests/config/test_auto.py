"""What `auto` means on a machine: backend, number type and engine."""

import pytest

from tests.stages.tiny import TREE
from verizero.pipeline.config.auto import for_machine, num_replicas
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.rollout import VllmConfig, rank_gpus
from verizero.pipeline.config.sections import LaunchConfig, TrainConfig
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run, surprises
from verizero.pipeline.train.backend import Backend


def on(num_ranks, device, has_vllm=False, **changes):
    return for_machine(parse(merge(TREE, changes)), num_ranks, device, has_vllm)


def chosen(num_ranks, device, **changes):
    return on(num_ranks, device, **changes).train.backend


@pytest.mark.parametrize(
    ("num_ranks", "device", "wanted"),
    [(1, "cpu", "torch"), (2, "cpu", "torch"), (1, "cuda:0", "torch"), (2, "cuda:1", "fsdp"), (64, "cuda", "fsdp")],
)
def test_several_ranks_on_gpus_divide_the_policy(num_ranks, device, wanted):
    assert chosen(num_ranks, device) == wanted
    assert chosen(num_ranks, device, train={"lora": {"rank": 2}}) == wanted


@pytest.mark.parametrize("backend", ["torch", "fsdp", "deepspeed"])
def test_a_backend_that_the_recipe_names_stays(backend):
    train = {"backend": backend, "zero": int(backend == "deepspeed")}
    assert chosen(1, "cpu", train=train) == chosen(8, "cuda", train=train) == backend


@pytest.mark.parametrize(
    ("billions", "gpus", "wanted"),
    [(7.6, 8, 1), (7.6, 16, 2), (7.6, 128, 16), (7.6, 12, 1), (32.8, 16, 1), (32.8, 64, 2), (671.0, 128, 1)],
)
def test_a_replica_has_the_fewest_nodes_of_eight_that_hold_it(billions, gpus, wanted):
    fsdp = TrainConfig(backend="fsdp")
    assert num_replicas(fsdp, int(billions * 1e9), 80 * 2**30, gpus, 8) == wanted
    assert num_replicas(fsdp, int(billions * 1e9), 0, gpus, 8) == 1, "no GPU"
    with pytest.raises(ConfigError, match=rf"train\.replicas=5 does not divide {gpus} ranks"):
        num_replicas(TrainConfig(backend="fsdp", replicas=5), 1, 0, gpus, 8)


def test_moments_in_8_bits_are_torch_s():
    assert chosen(8, "cuda", sft={"optimizer": {"kind": "adamw_8bit"}}) == "torch"


def test_a_base_in_4_bits_is_torch_s_and_the_embedded_engine_s():
    model = {"path": "org/name", "create": None, "quantize": "nf4"}
    made = on(8, "cuda", has_vllm=True, model=model, train={"lora": {"rank": 2}})
    assert (made.train.backend, made.rollout.engine, made.model.dtype) == ("torch", "torch", "bfloat16")
    elsewhere = on(8, "cuda", model=model, train={"lora": {"rank": 2}}, rollout={"engine": "vllm"})
    assert elsewhere.train.backend == "fsdp", "no engine has the bits"


def test_auto_has_what_every_backend_has():
    with pytest.raises(ConfigError, match=r"train\.offload=optimizer with train\.backend=auto"):
        chosen(8, "cuda", train={"offload": "optimizer"})
    with pytest.raises(ConfigError, match=r"train\.zero=1 with train\.backend=auto"):
        chosen(8, "cuda", train={"zero": 1})


def test_a_gpu_computes_in_bfloat16_where_the_recipe_allows_it():
    assert on(1, "cpu").model.dtype == "float32"
    assert on(1, "cuda").model.dtype == on(8, "cuda:3").model.dtype == "bfloat16"
    assert on(1, "cuda", model={"dtype": "float32"}).model.dtype == "float32"
    moving = {"reference": {"schedule": "ema", "alpha": 0.05}}  # by steps below bfloat16's rounding
    assert on(1, "cuda", rl=moving).model.dtype == "float32"
    assert on(1, "cuda", train={"backend": "deepspeed", "zero": 1}).model.dtype == "bfloat16"


def test_vllm_generates_on_a_gpu_where_it_is_installed_and_can():
    named = {"model": {"create": None, "path": "some/model"}}
    assert on(1, "cuda", True, **named).rollout.engine == on(8, "cuda", True, **named).rollout.engine == "vllm"
    assert on(1, "cuda", False, **named).rollout.engine == on(1, "cpu", True, **named).rollout.engine == "torch"
    assert on(1, "cuda", True).rollout.engine == "torch", "a model that the recipe makes"
    assert on(1, "cuda", True, rollout={"engine": "torch"}, **named).rollout.engine == "torch"
    unbounded = {"rollout": {"top_p": 0.9}, "rl": {"algorithm": {"name": "grpo", "keep_sampling": True}}}
    assert on(1, "cuda", True, **named, **unbounded).rollout.engine == "torch", "vLLM does not record such sets"


def test_servers_on_gpus_of_their_own_take_all_of_them():
    def share(**changes):
        return VllmConfig(**changes).memory_share

    assert share() == share(devices=((0,),), share_gpus=True) == 0.4
    assert share(devices=((6,), (7,)), servers=2) == 0.9
    assert share(devices=((6,),), gpu_memory_share=0.5) == 0.5


def test_ranks_of_a_host_take_its_first_gpus_or_the_one_that_is_named():
    assert rank_gpus(LaunchConfig(kind="torchrun", gpus_per_node=6), TrainConfig()) == (0, 1, 2, 3, 4, 5)
    assert rank_gpus(LaunchConfig(), TrainConfig(device="cuda:2")) == (2,)


def test_an_open_run_has_a_backend_of_its_own(tmp_path):
    with open_run(parse(TREE), tmp_path, tmp_path / "run", "auto", Progress()) as session:
        recipe = session.run.recipe
        assert (recipe.train.backend, recipe.model.dtype, recipe.rollout.engine) == ("torch", "float32", "torch")
        assert isinstance(session.workers.backend, Backend)


def test_a_run_says_where_it_is_slower_than_the_machine(monkeypatch):
    real = parse(merge(TREE, {"model": {"create": None, "path": "Qwen/Qwen3-8B"}, "train": {"device": "auto"}}))
    monkeypatch.setattr("verizero.pipeline.run.opening.unused_driver", lambda: None)
    assert list(surprises(real, "cpu")) == []
    monkeypatch.setattr("verizero.pipeline.run.opening.is_vllm_installed", lambda: False)
    (line,) = surprises(real, "cuda")
    assert "vLLM is faster, and is not installed" in line
    assert list(surprises(parse(TREE), "cuda")) == [], "a model that the recipe makes has the embedded engine anyway"
    monkeypatch.setattr("verizero.pipeline.run.opening.unused_driver", lambda: "550.54.15")
    (line,) = surprises(real, "cpu")
    assert "trains on the CPU" in line
    assert "driver 550.54.15" in line
