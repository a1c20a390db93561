"""A template or a stop token of another model, planted in a recipe and found before training."""

import json

import pytest

from tests.checks.before import CHANGE, chat_model, looked, of_chat, recipe, sums
from tests.data.chat_templates import END, TEMPLATES
from tests.stages.tiny import TREE

FOREIGN = (
    "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_chat_model_with_its_own_template_has_nothing(name, tmp_path):
    checks, findings = looked(of_chat(tmp_path, chat_model(tmp_path, TEMPLATES[name])), tmp_path)
    assert [f for f in findings.values() if f.cause in ("other_template", "end_token_missing")] == []
    assert checks["template"].tried
    assert checks["stop token"].result == f"generation stops at {END}"


def test_a_template_of_another_model_is_found(tmp_path):
    _, findings = looked(of_chat(tmp_path, chat_model(tmp_path, FOREIGN)), tmp_path)
    finding = findings["other_template"]
    assert finding.level == "problem"
    assert "<|bot|>, <|end|>, <|user|>, for which the tokenizer has no tokens" in finding.sentence
    assert CHANGE.findall(finding.remedy) == ["data.template=plain"]


@pytest.mark.parametrize(("template", "level"), [(FOREIGN.replace("<|end|>", END), "note"), (None, "problem")])
def test_no_template_is_a_problem_and_marks_in_letters_a_note_where_a_token_ends_turns(template, level, tmp_path):
    _, findings = looked(of_chat(tmp_path, chat_model(tmp_path, template)), tmp_path)
    assert findings["other_template"].level == level


@pytest.mark.parametrize(("name", "level"), [("plain", "warning"), ("r1_zero", "note")])
def test_another_form_than_the_chat_that_a_model_ends_its_turns_by_is_found(name, level, tmp_path):
    model = chat_model(tmp_path)
    _, findings = looked(of_chat(tmp_path, model, name=name), tmp_path)
    assert findings["other_template"].level == level
    assert CHANGE.findall(findings["other_template"].remedy) == ["data.template=chat"]
    # A base has the template of its family, and another end.
    _, findings = looked(of_chat(tmp_path, chat_model(tmp_path, end="<pad>"), name=name), tmp_path)
    assert "other_template" not in findings


def test_the_template_that_a_run_left_in_the_models_folder_is_compared(tmp_path):
    model = chat_model(tmp_path)
    (tmp_path / "model" / "template.json").write_text(json.dumps({"name": "chat", "system": "Be brief."}))
    _, findings = looked(of_chat(tmp_path, model), tmp_path)
    finding = findings["other_template"]
    assert finding.level == "problem"
    assert finding.evidence[0].file.endswith("template.json")
    assert "Be brief." in finding.remedy
    _, findings = looked(of_chat(tmp_path, model, system="Be brief."), tmp_path)
    assert "other_template" not in findings


def test_prompts_that_were_written_with_the_template_before_are_found(tmp_path):
    rows = [r | {"question": f"<|im_start|>user\n{r['question']}{END}\n"} for r in sums()]
    _, findings = looked(of_chat(tmp_path, chat_model(tmp_path), rows), tmp_path)
    assert findings["other_template"].level == "problem"
    assert findings["other_template"].evidence[0].line == 1


def test_questions_that_ask_for_tags_of_thinking_have_nothing(tmp_path):
    rows = [r | {"question": f"Think within <think> and </think>. {r['question']}"} for r in sums()]
    _, findings = looked(of_chat(tmp_path, chat_model(tmp_path, TEMPLATES["opens_thinking"]), rows), tmp_path)
    assert "other_template" not in findings


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for m in messages if m.role != 'system' %}", "leaves the system message out"),
        ("{{ messages[0].content }}{% for m in messages %}", "has the system message 2 times"),
        ("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}", "cannot write"),
    ],
)
def test_a_system_message_that_the_template_does_not_write_once_is_found(template, says, tmp_path):
    whole = template + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    _, findings = looked(of_chat(tmp_path, chat_model(tmp_path, whole), system="Answer in digits."), tmp_path)
    assert says in findings["other_template"].sentence
    assert CHANGE.findall(findings["other_template"].remedy) == ["data.template.system=null"]


def test_generation_stops_at_the_end_of_a_turn_that_the_tokenizer_does_not_name(tmp_path):
    checks, findings = looked(of_chat(tmp_path, chat_model(tmp_path, end="<pad>")), tmp_path)
    assert "end_token_missing" not in findings
    assert sorted(checks["stop token"].result.split()[-2:]) == ["<pad>", END]


def test_an_end_token_that_the_model_has_no_place_for_is_found(tmp_path):
    model = chat_model(tmp_path)
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 100}))
    _, findings = looked(of_chat(tmp_path, model), tmp_path)
    assert findings["end_token_missing"].level == "problem"
    assert "the model has 100 tokens" in findings["end_token_missing"].sentence


@pytest.mark.parametrize("end", [None, "<eos>", "<|im_end|>"])
def test_demonstrations_that_spell_an_end_token_are_found(end, tmp_path):
    shown = [r | {"demonstration": f"{r['answer']}{end or ''}\n"} for r in sums()]
    sft = TREE["sft"]
    characters = TREE["model"]["create"]["characters"] + "_|"
    config = recipe(tmp_path, shown, stages=["sft", "rl"], sft=sft, model={"create": {"characters": characters}})
    _, findings = looked(config, tmp_path)
    assert ("end_token_missing" in findings) == (end is not None)
    if end is not None:
        assert f"40 of 40 demonstrations end with the text {end}, " in findings["end_token_missing"].sentence
