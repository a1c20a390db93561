"""Rows in the layouts of published data sets, with their real column names."""

import json
from typing import Any

Row = dict[str, Any]


def gsm8k(i: int) -> Row:
    return {"question": f"What is {i} and 2?", "answer": f"It is <<{i}+2={i + 2}>>{i + 2}.\n#### {i + 2}"}


def math(i: int) -> Row:
    return {"problem": f"{i}+2?", "level": "Level 1", "type": "Algebra", "solution": f"So \\boxed{{{i + 2}}}."}


def math_500(i: int) -> Row:
    return {
        "problem": f"{i}+2?",
        "solution": f"So \\boxed{{{i + 2}}}.",
        "answer": str(i + 2),
        "unique_id": f"t/{i}.json",
    }


def dapo_math(i: int) -> Row:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Solve: {i}+2. Answer: $Answer"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(i + 2), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"id-{i}"},
    }


def open_r1(i: int) -> Row:
    return {
        "problem": f"{i}+2?",
        "solution": f"Add. {i + 2}",
        "answer": str(i + 2),
        "problem_type": "Algebra",
        "uuid": f"u{i}",
        "messages": [{"role": "user", "content": f"{i}+2?"}, {"role": "assistant", "content": "..."}],
    }


def verl(i: int) -> Row:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "Answer."}, {"role": "user", "content": f"{i}+2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(i + 2)},
        "extra_info": {"split": "train", "index": i, "answer": f"#### {i + 2}", "question": f"{i}+2?"},
    }


def trl(i: int) -> Row:
    return {"prompt": [{"role": "user", "content": f"{i}+2?"}], "solution": f"${i + 2}$"}


def sharegpt(i: int) -> Row:
    turns = [{"from": "human", "value": f"{i}+2?"}, {"from": "gpt", "value": f"{i + 2}"}]
    return {"id": f"c{i}", "conversations": turns}


def alpaca(i: int) -> Row:
    return {"instruction": "Add the numbers.", "input": f"{i}, 2", "output": f"The sum of both is {i + 2}, of course."}


def tool_calls(i: int) -> Row:
    tool = {"name": "add", "description": "Add.", "parameters": {"a": {"type": "int"}, "b": {"type": "int"}}}
    call = [{"name": "add", "arguments": {"a": i, "b": 2}}]
    return {"id": i, "query": f"Add {i} and 2.", "tools": json.dumps([tool]), "answers": json.dumps(call)}


def openai_tools(i: int) -> Row:
    numbers = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    function = {"name": "add", "description": "Add.", "parameters": numbers}
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": i, "b": n})}}
        for n in (2, 3)
    ]
    messages = [
        {"role": "system", "content": "Use the tools."},
        {"role": "user", "content": f"{i}+2, {i}+3?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c3", "content": str(i + 3)},  # in another order than the calls
        {"role": "tool", "tool_call_id": "c2", "content": str(i + 2)},
        {"role": "assistant", "content": f"{i + 2} and {i + 3}", "tool_calls": None},
    ]
    return {"messages": messages, "tools": [{"type": "function", "function": function}]}


def turns(i: int) -> Row:
    said = (f"{i}+2?", f"{i + 2}", "and twice?", f"{2 * (i + 2)}")
    return {"conversations": [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(said)]}


def trl_conversational(i: int) -> Row:
    return {"prompt": [{"role": "user", "content": f"{i}+2?"}], "completion": [_answer(f"It is {i + 2}.")]}


def ultrachat(i: int) -> Row:
    return {"prompt": f"{i}+2?", "prompt_id": f"p{i}", "messages": [_asked(f"{i}+2?"), _answer(f"It is {i + 2}.")]}


def _asked(text: str) -> Row:
    return {"role": "user", "content": text}


def _answer(text: str) -> Row:
    return {"role": "assistant", "content": text}


def hh(i: int) -> Row:
    start = f"\n\nHuman: {i}+2?\n\nAssistant: "
    return {"chosen": f"{start}{i + 2}", "rejected": f"{start}no"}


def ultrafeedback(i: int) -> Row:
    sides = {side: [_asked(f"{i}+2?"), _answer(text)] for side, text in (("chosen", str(i + 2)), ("rejected", "no"))}
    return {"prompt": f"{i}+2?", "prompt_id": f"p{i}", **sides, "score_chosen": 8.0, "score_rejected": 2.0}


def orca_pairs(i: int) -> Row:
    return {"system": "Add.", "question": f"{i}+2?", "chosen": str(i + 2), "rejected": "no"}


PROMPTS = {
    gsm8k: ("math", "question"),
    math: ("math", "problem"),
    math_500: ("math", "problem"),
    dapo_math: ("math", "prompt"),
    open_r1: ("math", "problem"),
    verl: ("math", "prompt"),
    trl: ("math", "prompt"),
    tool_calls: (None, "query"),
}
"""Layout -> the verifier that fits, and the column of the question."""
IMITATED = (sharegpt, turns, alpaca, openai_tools, trl_conversational, ultrachat)
"""Layouts with responses to imitate."""
PAIRS = (hh, ultrafeedback, orca_pairs)
"""Layouts of a better and a worse response."""
