"""Adapters, on linear layers and on the experts of a mixture, whose weights are parameters [experts, out, in]."""

import subprocess
import sys

import pytest
import torch
import transformers

from tests.models.families import SLOW, build, tiny
from tests.train.sampled import MODELS
from verizero.pipeline.errors import CheckpointError, ConfigError
from verizero.pipeline.models.lora import Adapted, trained_by_saved_name
from verizero.pipeline.models.routing import recording, replaying, unreplayable
from verizero.pipeline.models.saved_names import fingerprint
from verizero.pipeline.models.streamed import model_on_meta

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])
NEAR = 1e-4
"""Between two orders of the sums: 15 products one after the other, of up to 64 terms each, times eps of float32."""


@torch.no_grad()
def taught(a):
    """As if it had learned something."""
    generator = torch.Generator().manual_seed(1)
    for p in trained_by_saved_name(a.model).values():
        p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return a


@torch.no_grad()
def logits(model):
    found = model(input_ids=IDS, use_cache=False).logits
    return found


def test_adapters_of_another_base_are_refused(tmp_path):
    Adapted(tiny("qwen2 tied", dtype=torch.float64), 3, 6.0, (), 5).save(tmp_path, True)
    other = Adapted(tiny("qwen2 tied", seed=1, dtype=torch.float64), 3, 6.0, (), 5)
    with pytest.raises(CheckpointError, match="they are of another base than the recipe's model"):
        other.load(tmp_path)
    wider = Adapted(tiny("qwen2 tied", dtype=torch.float64), 4, 6.0, (), 5)
    with pytest.raises(CheckpointError, match="do not fit the policy"):
        wider.load(tmp_path)
    assert fingerprint(tiny("llama")) == fingerprint(tiny("llama")) != fingerprint(tiny("llama", seed=1))


FORMS = {
    **{name: MODELS[name] for name in ("qwen3_moe", "mixtral", "qwen2_moe", "qwen3_moe with a dense layer")},
    "gpt_oss": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "layer_types": ["full_attention"] * 2},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
            "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8,
            "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
        },
    ),
}  # fmt: skip
DENSE = {"qwen2": {"tie_word_embeddings": True}, "llama": {"attention_bias": True}, "gpt2": SLOW["gpt2"][1]}
FORMS |= {name: (name, changes) for name, changes in DENSE.items()}
"""gpt_oss has its experts' weights as [experts, in, out]; deepseek_v3 has linear layers next to the experts."""
BOTH = ("experts.gate_up_proj", "experts.down_proj")
RANK, ALPHA = 3, 6.0


def mixture(name, dtype=torch.float64, seed=0):
    """The fused products of experts have no float64."""
    model = build(*FORMS[name], seed, dtype)
    if dtype == torch.float64 and name not in DENSE:
        model.set_experts_implementation("eager")
    return model


def mixture_adapted(name="qwen3_moe", targets=BOTH, dtype=torch.float64):
    return Adapted(mixture(name, dtype), RANK, ALPHA, targets, 5)


def with_adapters(a):
    return {n.split(".lora_")[0].split(".", 3)[-1] for n, p in a.model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("name", "targets"),
    [*((name, ()) for name in FORMS), *(("qwen3_moe", t) for t in (BOTH, BOTH[:1], ("q_proj", BOTH[1])))],
)
def test_merged_they_compute_what_the_adapters_do(name, targets):
    plain = logits(mixture(name))
    a = mixture_adapted(name, targets)
    assert torch.equal(logits(a.model), plain)
    assert torch.equal(logits(a.plain_model()), plain)
    assert a.is_fresh()
    taught(a)
    assert not a.is_fresh()
    moved = logits(a.model)
    assert (moved - plain).abs().max() > 0.01
    assert torch.allclose(logits(a.plain_model()), moved, rtol=0, atol=1e-6)
    with a.without():
        assert torch.equal(logits(a.model), plain)
    assert torch.equal(logits(a.plain_model(learned=False)), plain)
    assert torch.equal(logits(a.model), moved)
    block = {n: p.detach() for n, p in a.model.named_parameters()}
    base = dict(mixture(name).named_parameters())
    for learned, wanted in ((True, dict(a.plain_model().named_parameters())), (False, base)):
        seen = a.merged(dict(block), learned)
        assert seen.keys() == wanted.keys()
        assert all(torch.equal(seen[n], w) for n, w in wanted.items())


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_gradients_are_those_of_a_policy_in_which_each_expert_has_its_own_factors(name):
    """The double has a matrix for each expert, made of its base and its part of the factors, one expert at a time."""
    a = taught(mixture_adapted(name))
    torch.nn.functional.log_softmax(a.model(input_ids=IDS, use_cache=False).logits, -1)[0, :-1].gather(
        1, IDS[0, 1:, None]
    ).sum().backward()
    double = mixture(name).requires_grad_(False)
    factors = {}
    weights = {}
    for layer in range(2):
        for key, place in ((BOTH[0], "experts.base_layer"), (BOTH[1], "experts")):
            where = f"model.layers.{layer}.mlp.{place}"
            down, up = (
                a.model.get_parameter(f"{where}.lora_{x}.default.weight").detach().clone().requires_grad_()
                for x in "AB"
            )
            factors |= {f"{where}.lora_A.default.weight": down, f"{where}.lora_B.default.weight": up}
            base = double.get_parameter(f"model.layers.{layer}.mlp.{key}")
            own = []
            for e in range(len(base)):
                change = sum(
                    torch.outer(up[:, r * len(base) + e], down[e * RANK + r]) for r in range(RANK)
                )  # [out, in], as peft lays the factors out
                own.append(base[e] + ALPHA / RANK * (change.T if name == "gpt_oss" else change))
            weights[f"model.layers.{layer}.mlp.{key}"] = torch.stack(own)
    out = torch.func.functional_call(double, weights, kwargs={"input_ids": IDS, "use_cache": False}).logits
    out.log_softmax(-1)[0, :-1].gather(1, IDS[0, 1:, None]).sum().backward()
    learn = {n: p for n, p in a.model.named_parameters() if p.requires_grad}
    assert learn.keys() == factors.keys()
    for n, p in learn.items():
        assert p.grad.abs().max() > 1e-4
        assert torch.allclose(p.grad, factors[n].grad, rtol=1e-9, atol=1e-12), n


def test_without_names_all_get_adapters_but_routers_and_the_output_layer():
    attention = {f"self_attn.{x}_proj" for x in "qkvo"}
    experts = {"mlp.experts", "mlp.experts.base_layer"}
    assert with_adapters(mixture_adapted("qwen3_moe", ())) == attention | experts
    dense = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    assert with_adapters(mixture_adapted("qwen3_moe with a dense layer", ())) == attention | experts | dense
    shared = {f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")}
    assert with_adapters(mixture_adapted("qwen2_moe", ())) == attention | experts | shared


def test_a_name_reaches_experts_and_linear_layers_that_end_with_it():
    a = mixture_adapted("qwen3_moe with a dense layer", ("down_proj", "v_proj"))
    assert with_adapters(a) == {"self_attn.v_proj", "mlp.experts", "mlp.down_proj"}
    assert with_adapters(mixture_adapted("qwen2_moe", ("shared_expert.gate_proj",))) == {"mlp.shared_expert.gate_proj"}


@pytest.mark.parametrize("name", ["gate", "gate_proj", "experts", "mlp.gate.weight"])
def test_names_that_are_not_there_are_refused_with_those_that_are(name):
    there = "experts.down_proj, experts.gate_up_proj, k_proj, lm_head, o_proj, q_proj, v_proj"
    with pytest.raises(ConfigError, match=rf"train\.lora\.targets=\['q_proj', '{name}'\].*there are {there}"):
        mixture_adapted("qwen3_moe", ("q_proj", name))


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss", "qwen2_moe", "llama"])
def test_saved_adapters_come_back_and_load_with_peft(name, tmp_path):
    a = taught(mixture_adapted(name, (), torch.float32))
    a.save(tmp_path, True)
    again = mixture_adapted(name, (), torch.float32)
    again.load(tmp_path)
    assert torch.equal(logits(again.model), logits(a.model))
    import peft  # half a second

    theirs = peft.PeftModel.from_pretrained(mixture(name, torch.float32), tmp_path / "adapter")
    assert torch.equal(logits(theirs), logits(a.model))
    a.plain_model().save_pretrained(tmp_path / "model")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(plain), logits(a.plain_model()))


def test_the_same_seed_draws_the_same_adapters_where_the_base_is_not_loaded_yet(tmp_path):
    mixture("qwen3_moe", torch.float32).save_pretrained(tmp_path)
    loaded, empty = mixture("qwen3_moe", torch.float32), model_on_meta(str(tmp_path), torch.float32)
    before = torch.get_rng_state()
    drawn = [Adapted(model, RANK, ALPHA, (), 5) for model in (loaded, empty)]
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0].base == fingerprint(mixture("qwen3_moe", torch.float32))
    assert all(p.device.type == "meta" for p in empty.parameters() if not p.requires_grad)
    first, second = (trained_by_saved_name(a.model) for a in drawn)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[n], p) for n, p in second.items())
    assert {n.split("experts.")[-1] for n, p in first.items() if "experts" in n and bool(p.any())} == {
        "lora_A.weight", "base_layer.lora_A.weight",
    }  # fmt: skip


def test_half_precision_policies_have_float32_adapters():
    a = taught(mixture_adapted(dtype=torch.bfloat16))
    assert {p.dtype for p in a.model.parameters() if p.requires_grad} == {torch.float32}
    assert logits(a.model).dtype == torch.bfloat16
    exact = taught(mixture_adapted(dtype=torch.float32))
    for n, p in a.plain_model().named_parameters():
        assert p.dtype == torch.bfloat16
        if "experts." in n:
            base = dict(a.plain_model(learned=False).named_parameters())[n].float()
            change = exact.plain_model().get_parameter(n) - exact.plain_model(learned=False).get_parameter(n)
            assert torch.equal(p, (base + change).bfloat16()) or (p.float() - base - change).abs().max() < 0.01


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_recorded_routes_are_replayed_through_adapters(name):
    a = taught(mixture_adapted(name, (), torch.float32))
    assert unreplayable(a.model) is None
    merged = a.plain_model()
    with recording(merged) as choices:
        logits(merged)
        wanted = choices.take(1)
    with replaying(a.model, wanted) as counted:
        same = logits(a.model)
    assert (counted.changed, counted.total) == (0, wanted[..., 0].numel())
    assert torch.allclose(same, logits(merged), atol=NEAR)
    with replaying(a.model, wanted.flip(2)), replaying(merged, wanted.flip(2)) as counted:
        assert torch.allclose(logits(a.model), logits(merged), atol=NEAR)
    assert counted.changed > 0


PROGRAM = """
import sys
from verizero.pipeline.models.load import quiet

quiet()
from tests.models.families import tiny
from verizero.pipeline.models.lora import Adapted

Adapted(tiny("llama"), 3, 6.0, (), 5)
print([name for name in ("bitsandbytes", "torch._dynamo", "triton") if name in sys.modules])
import triton
Adapted(tiny("llama"), 3, 6.0, (), 5, quantize_on="cpu")
from peft.import_utils import is_bnb_available
print(is_bnb_available(), "bitsandbytes" in sys.modules)
"""


@pytest.mark.run
@pytest.mark.nightly
def test_a_policy_with_adapters_imports_no_package_that_it_does_not_need():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['torch._dynamo']", "True True"], "only NF4 needs one of them"
