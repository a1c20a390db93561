"""Mistakes of a first hour: each message names what was given, where, and what to write."""

import re

import pytest

import verizero as vz
from tests.api.tiny import ROWS, SMALL
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.api.recipe import Wish, write_recipe
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import _fields
from verizero.pipeline.config.other_names import NEAR, SAME
from verizero.pipeline.config.run import RunConfig

FILES = {
    "r.py": "def reward(completion, answer):\n    return 1.0\n",
    "broken.py": "def reward(completion:\n",
    "empty.jsonl": "",
    "foo.jsonl": '{"foo": "Who?"}\n',
    "bad.jsonl": '{"question": "Who?", "answer": "I"}\n{"question": "Who?"\n',
    "open.jsonl": '{"question": "Who?", "answer": "a king"}\n',
}
PAIR = [{"chosen": "a", "rejected": "b"}]
ALONE = [{"prompt": "Who?"}]


def reward(completion, answer):
    return float(answer in completion)


MISTAKES = [
    # the model and the data
    ({"model": "tinny"}, "'tinny'", "did you mean tiny"),
    ({"model": "r.py"}, "r.py", "save_pretrained, a file x.gguf"),
    ({"data": "qa.jsn"}, "data='qa.jsn'", "did you mean qa.jsonl"),
    ({"evaluation": "qaa.jsonl"}, "evaluation='qaa.jsonl'", "did you mean qa.jsonl"),
    ({"data": "empty.jsonl"}, "empty.jsonl has no rows", "give at least one, e.g."),
    ({"data": "foo.jsonl"}, "columns: foo", "Call one of them problem, question"),
    ({"data": "bad.jsonl"}, "bad.jsonl line 2: not JSON", "must be one JSON object"),
    ({"data": ["a"]}, "row 1 of data is str", "is a dict of columns"),
    ({"data": []}, "data is empty", "give at least one row"),
    ({"data": 3}, "data is int", "give a file (.jsonl"),
    ({"data": {"question": ["a"], "answer": ["b", "c"]}}, "{'question': 1, 'answer': 2}", "give each row all columns"),
    # the reward
    ({"reward": None, "data": "open.jsonl"}, "say what is right", "reward=f with def f(completion"),
    ({"reward": "mathh"}, "'mathh'", "did you mean math"),
    ({"reward": 3}, "reward: 3 is int", "give a function, or a verifier's name"),
    ({"reward": []}, "reward is empty", "give a function, or a list or dict"),
    ({"reward": lambda *texts: 1}, "'*texts' has no name to be given by", "write def f(completion, answer)"),
    ({"reward": "r.py"}, "reward='r.py'", "write 'r.py:my_function'"),
    ({"reward": "r.py:rewad"}, "r.py has no 'rewad'", "did you mean reward"),
    ({"reward": "q.py:reward"}, "q.py", "did you mean", "r.py"),
    ({"reward": "broken.py:reward"}, "broken.py does not import: SyntaxError", "line 1"),
    ({"weights": [1]}, "weights=[1] belong to several rewards", "give reward a list or a dict, or drop them"),
    ({"reward": [reward, "math"], "weights": [1]}, "1 numbers for 2 rewards", "one for each of reward, math"),
    ({"reward": "math", "success": 1.0}, "success=1 is of reward functions", "drop it"),
    ({"data": PAIR}, "train by a preference loss", "drop reward=, or give questions alone"),
    ({"data": ALONE}, "reward function 'reward' asks for one", "a column by its own name"),
    ({"data": ALONE, "reward": "math"}, "there is no answer", "verifier 'math' compares"),
    # names of arguments and fields
    ({"lerning_rate": 1}, "'lerning_rate'", "did you mean learning_rate"),
    ({"rl.group_sise": 4}, "'rl.group_sise'", "did you mean group_size"),
    ({"foo": 1}, "'foo'", "docs/python.md"),
    ({"num_generations": 8, "group_size": 4}, "num_generations and group_size are one setting", "give one of them"),
    ({"data": None, "model": "demo"}, "reward= goes with data=", "is a recipe; put it there"),
    ({"data": None, "model": "demo", "reward": None, "steps": None, "lora_rank": 4}, "**{'train.lora.rank': 4}"),
    # values
    ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
    ({"steps": "ten"}, "steps must be a whole number of at least 1, got 'ten'"),
    ({"algorithm": "grop"}, "'grop'", "did you mean grpo"),
    ({"name": "a/b"}, "name: String should match pattern", "got 'a/b'"),
    ({"output": 3}, "output must be the name of a folder, got 3"),
    ({"resume": "allways"}, "resume='allways'", "auto, never, must, changed"),
    ({"callbacks": [3]}, "callback int: 3 is int", "give a function f(event)"),
    ({"callbacks": ["r.py:rewad"]}, "has no 'rewad'", "did you mean reward"),
    ({"group_size": 1}, "group_size must be >= 2 to form a baseline, got 1", "set rl.group_size"),
    ({"temperature": 0}, "rollout.temperature: Input should be greater than 0, got 0"),
    ({"max_completion_length": 10**6}, "=1000000 leaves no room for a prompt", "context of 64; lower it"),
    ({"learning_rate": "high"}, "learning_rate: Input should be a valid number", "got 'high'"),
    ({"learning_rate": reward}, "is function, which a recipe cannot hold", "give a number"),
    ({"lr_scheduler_type": "cosin"}, "schedule: Input should be 'constant', 'linear', 'cosine'", "got 'cosin'"),
    ({"device": "gpu"}, "train.device: 'gpu'", "give auto, cpu, cuda"),
    ({"dtype": "fp16"}, "model.dtype: Input should be 'auto', 'float32' or 'bfloat16', got 'fp16'"),
    ({"report_to": "comet"}, "'comet'", "known: mlflow, tensorboard, wandb"),
    ({"engine": "vlm"}, "rollout.engine", "did you mean vllm"),
    ({"launch.kind": "torchrun"}, "launch.kind=torchrun", "not from Python; drop it"),
]


@pytest.mark.parametrize(("changes", "words"), [(changes, words) for changes, *words in MISTAKES])
def test_a_mistake_is_named_with_its_value_and_the_remedy(changes, words, folder):
    for name, text in FILES.items():
        (folder / name).write_text(text)
    call = {"model": "tiny", "data": ROWS, "reward": reward, "name": "bad", "steps": 1, "quiet": True} | SMALL
    if {"group_size", "num_generations"} & changes.keys():
        call.pop("rl.group_size")
    if "max_completion_length" in changes:
        call.pop("rollout.max_response_tokens")
    call |= changes
    with pytest.raises(vz.VerizeroError) as refused:
        vz.train(call.pop("model"), call.pop("data"), **call)
    assert [w for w in words if w not in str(refused.value)] == [], str(refused.value)
    assert "--" not in str(refused.value), "an option of the shell"
    assert not (folder / "runs" / "bad" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train tinny.yaml", ["'tinny.yaml'", "no recipe of that name"]),
        ("train tiny qa.jsonl --reward r.py:rewad --no-prefect", ["has no 'rewad'", "did you mean reward"]),
        ("train tiny qa.jsonl --reward math --set num_generations=4 --no-prefect", ["write rl.group_size"]),
        ("train tiny qa.jsonl --reward math --set rl.group_size --no-prefect", ["must read a.b=value"]),
        ("diagnose runs/nothing", ["runs/nothing holds no metrics.jsonl", "name the folder of a run, e.g. runs/demo"]),
        ("eval tiny --suite math501", ["math501", "did you mean math500"]),
    ],
)
def test_a_mistake_in_a_command_is_named_too(command, words, folder, capsys):
    (folder / "r.py").write_text(FILES["r.py"])
    assert main(command.split()) == 1
    error = capsys.readouterr().err
    assert [w for w in words if w not in error] == [], error


@pytest.mark.parametrize("name", SAME | NEAR)
def test_a_usual_name_sets_a_field_or_names_those_that_are_there(name, folder):
    """Names of other trainers: the field of each is there, and a name whose values differ is refused with ours."""
    for field in re.findall(r"\b(?:rl|rollout|train|model|data|report|checkpoint)\.[a-z_.]*[a-z]", (SAME | NEAR)[name]):
        *parents, last = field.removeprefix("rl.algorithm.").split(".")
        section = type(load_algorithm("grpo")[0]) if "rl.algorithm." in field else RunConfig
        assert last in _fields(section, parents), field
    if name in NEAR:
        with pytest.raises(vz.VerizeroError, match=re.escape(f"no argument {name!r}; write {NEAR[name]}")):
            vz.train("tiny", ROWS, reward=reward, quiet=True, **{name: 1})


def test_usual_names_are_fields_of_the_stage_that_is_trained(folder):
    path, _ = write_recipe(
        Wish("tiny", "qa.jsonl", "math", fields={"learning_rate": 2e-5, "beta": 0.1, "report_to": "none"})
    )
    recipe = path.read_text()
    assert "learning_rate: 2.0e-05" in recipe
    assert "kl_coef: 0.1" in recipe
    assert "trackers: []" in recipe
    assert "reference" not in recipe
    path, _ = write_recipe(Wish("tiny", PAIR, fields={"learning_rate": 2e-5}))
    assert "preference" in (text := path.read_text())
    assert "learning_rate: 2.0e-05" in text
