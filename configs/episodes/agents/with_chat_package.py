"""An agent that knows nothing of this project: it lends the policy a calculator, through the package `openai`."""

import json
import operator
import os

from openai import OpenAI

DO = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv}
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": NUMBERS}} for name in DO]

client = OpenAI()
messages = [{"role": "user", "content": os.environ["VERIZERO_TASK"]}]
while True:
    answer = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=TOOLS)
    message = answer.choices[0].message
    if not message.tool_calls:
        break
    messages.append(message)
    for call in message.tool_calls:
        try:
            numbers = json.loads(call.function.arguments)
            result = str(DO[call.function.name](numbers["a"], numbers["b"]))
        except (KeyError, TypeError, ArithmeticError):
            result = "wrong call"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(message.content)
