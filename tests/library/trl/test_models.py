"""Models, tokenizers and adapters that a script holds as objects, and models that TRL would train by another loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.library.trl.test_arguments import folder, here, recipe_of
from tests.library.trl.tiny import SIZES, model, tokenizer
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.load import create_model, save_folder

__all__ = ["folder", "here"]  # fixtures


def test_a_model_and_a_tokenizer_that_are_objects_are_saved_in_the_run(folder: str) -> None:
    path = Path(recipe_of(folder, model=model(), processing_class=tokenizer()).model.path or "")
    assert path == Path("out/given/model").absolute()
    assert (path / "model.safetensors").is_file()
    assert (path / "tokenizer.json").is_file()


def test_a_tokenizer_next_to_a_name_is_used_where_it_is_another(folder: str) -> None:
    import transformers

    same = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    assert recipe_of(folder, processing_class=same).model.path == folder
    other = tokenizer(chat=True)
    other.chat_template += "!"
    path = recipe_of(folder, processing_class=other).model.path
    assert transformers.AutoTokenizer.from_pretrained(path).chat_template == other.chat_template
    assert transformers.AutoTokenizer.from_pretrained(folder).chat_template == same.chat_template
    assert (Path(str(path)) / "model.safetensors").samefile(Path(folder) / "model.safetensors")


def test_adapters_of_peft_are_those_of_the_recipe(folder: str) -> None:
    import peft

    lora = recipe_of(folder, peft_config=peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")).train.lora
    assert lora is not None
    assert (lora.rank, lora.alpha, lora.targets) == (4, 8, ())
    lora = recipe_of(folder, peft_config=peft.LoraConfig(r=4, lora_alpha=8, use_rslora=True)).train.lora
    assert lora is not None
    assert (lora.alpha, set(lora.targets)) == (16, {"q_proj", "v_proj"})
    for wrong, words in {"lora_dropout": 0.1, "use_dora": True, "target_modules": ".*proj"}.items():
        with pytest.raises(ConfigError, match=f"peft_config has {wrong}"):
            recipe_of(folder, peft_config=peft.LoraConfig(**{wrong: words}))
    with pytest.raises(ConfigError, match="PeftModel"):
        recipe_of(folder, model=peft.get_peft_model(model(), peft.LoraConfig(target_modules=["q_proj"])))


EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
OTHERS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "dropout": ("qwen2", {**SIZES, "attention_dropout": 0.1}, "attention_dropout=0.1", {"disable_dropout": True}),
    "experts": (
        "mixtral",
        {**SIZES, **EXPERTS, "router_aux_loss_coef": 0.02},
        "router_aux_loss_coef=0.02",
        {"router_aux_loss_coef": 0.0},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_trl_would_train_by_another_loss_is_refused(tmp_path: Path, name: str) -> None:
    kind, sizes, message, remedy = OTHERS[name]
    save_folder(create_model(kind, sizes, tokenizer(), 0), tokenizer(), tmp_path / "other")
    with pytest.raises(ConfigError) as caught:
        recipe_of(str(tmp_path / "other"))
    assert message in str(caught.value)
    assert f"set {next(iter(remedy))}=" in str(caught.value)
    assert recipe_of(str(tmp_path / "other"), **remedy).rl is not None


def test_a_term_for_experts_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"router_aux_loss_coef=0.1 \(asked for\)"):
        recipe_of(folder, router_aux_loss_coef=0.1)
