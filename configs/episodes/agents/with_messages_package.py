"""An agent that knows nothing of this project: it lends the policy a calculator, through the package `anthropic`."""

import operator
import os

import anthropic

DO = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv}
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = [{"name": name, "input_schema": NUMBERS} for name in DO]

client = anthropic.Anthropic()
messages = [{"role": "user", "content": os.environ["VERIZERO_TASK"]}]
while True:
    with client.messages.stream(model="policy", max_tokens=64, messages=messages, tools=TOOLS) as stream:
        answer = stream.get_final_message()
    calls = [part for part in answer.content if part.type == "tool_use"]
    if not calls:
        break
    messages.append({"role": "assistant", "content": answer.content})
    results = []
    for call in calls:
        try:
            result = str(DO[call.name](call.input["a"], call.input["b"]))
        except (KeyError, TypeError, ArithmeticError):
            result = "wrong call"
        results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
    messages.append({"role": "user", "content": results})
print("".join(part.text for part in answer.content if part.type == "text"))
