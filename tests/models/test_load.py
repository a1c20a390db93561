"""Making, saving and loading a policy."""

from types import SimpleNamespace

import pytest
import torch
import transformers

from tests.models.families import SHAPE, next_logits
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.load import create_model, eos_ids, load_model, load_tokenizer, save_folder

CONFIG = {k: v for k, v in SHAPE.items() if not k.endswith("_id") and k != "vocab_size"}


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer("0123456789+= ")


def test_a_made_model_is_drawn_from_its_seed_only(tokenizer):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    one = create_model("qwen2", CONFIG, tokenizer, 5)
    assert torch.equal(torch.get_rng_state(), state)  # no other stream moved
    torch.manual_seed(99)
    same, other = create_model("qwen2", CONFIG, tokenizer, 5), create_model("qwen2", CONFIG, tokenizer, 6)
    weights = [m.state_dict()["model.layers.0.mlp.down_proj.weight"] for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert one.config.vocab_size == len(tokenizer)
    assert one.config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize("tied", [True, False])
def test_a_made_model_in_bfloat16_is_the_float32_one_rounded_and_comes_back_as_it_was(tied, tokenizer, tmp_path):
    """Buffers too, some of which stay float32: a run that is killed and resumed must compute the same."""
    shape = {**CONFIG, "tie_word_embeddings": tied}
    torch.manual_seed(11)
    state = torch.get_rng_state()
    made = create_model("qwen2", shape, tokenizer, 5, "bfloat16")
    assert torch.equal(torch.get_rng_state(), state)
    drawn = create_model("qwen2", shape, tokenizer, 5).state_dict()
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}
    assert all(torch.equal(v, drawn[k].bfloat16()) for k, v in made.state_dict().items())
    save_folder(made, tokenizer, tmp_path / "model")
    again = load_model(str(tmp_path / "model"), "bfloat16")
    kept = {**dict(again.named_parameters()), **dict(again.named_buffers())}
    for name, ours in {**dict(made.named_parameters()), **dict(made.named_buffers())}.items():
        assert kept[name].dtype == ours.dtype
        assert torch.equal(kept[name], ours)


def test_a_saved_folder_loads_in_plain_transformers(tokenizer, tmp_path):
    model = create_model("qwen2", {**CONFIG, "tie_word_embeddings": True}, tokenizer, 5)
    save_folder(model, tokenizer, tmp_path / "model")
    ids = tokenizer("12+34=")["input_ids"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for loaded in (plain, load_model(str(tmp_path / "model"))):
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in loaded.state_dict().items())
        torch.testing.assert_close(next_logits(loaded.eval(), ids), next_logits(model.eval(), ids))
    again = load_tokenizer(str(tmp_path / "model"))
    assert again("12+34=")["input_ids"] == ids
    assert again.decode(ids) == "12+34="
    assert load_model(str(tmp_path / "model"), dtype="bfloat16").dtype == torch.bfloat16


def test_what_does_not_load_is_named_with_its_remedy(tokenizer, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)nowhere.*save_pretrained"):
        load_model(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere"):
        load_tokenizer(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="no_such_type"):
        create_model("no_such_type", CONFIG, tokenizer, 0)
    with pytest.raises(ConfigError, match="num_attention_heads"):
        create_model("qwen2", {**CONFIG, "num_attention_heads": "many"}, tokenizer, 0)


def test_a_tokenizer_without_an_end_is_refused_and_one_without_padding_pads_with_its_end(tokenizer, tmp_path):
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    bare.save_pretrained(tmp_path / "bare")
    with pytest.raises(ConfigError, match="end-of-sequence"):
        load_tokenizer(str(tmp_path / "bare"))
    bare.eos_token = tokenizer.eos_token
    bare.save_pretrained(tmp_path / "ended")
    loaded = load_tokenizer(str(tmp_path / "ended"))
    assert loaded.pad_token_id == loaded.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize(("named", "wanted"), [(None, [7]), (3, [3, 7]), ([9, 7, 3], [3, 7, 9])])
def test_every_end_token_ends_a_response(named, wanted):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=named))
    assert eos_ids(model, SimpleNamespace(eos_token_id=7)) == wanted


def test_loaded_weights_are_aligned(tokenizer, tmp_path):
    """Some products round otherwise at odd addresses, and a resumed run has to end with the same bytes."""
    save_folder(create_model("qwen2", CONFIG, tokenizer, 5), tokenizer, tmp_path / "model")
    assert all(p.data_ptr() % 64 == 0 for p in load_model(str(tmp_path / "model")).parameters())
