"""An agent that knows nothing of this project: the policy guesses its task's number, through the package `openai`."""

import os

from openai import OpenAI

number = os.environ["VERIZERO_TASK"]
client = OpenAI()
messages = [{"role": "user", "content": "1 to 32?"}]
for _ in range(5):
    answer = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
    guess = answer.choices[0].message.content
    if guess == number:
        break
    if not (guess.isascii() and guess.isdecimal()):
        hint = "a number from 1 to 32"
    else:
        hint = "higher" if int(guess) < int(number) else "lower"
    messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": hint}]
print(guess)
