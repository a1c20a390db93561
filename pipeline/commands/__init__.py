"""The commands of `verizero`, a module each: `add(commands)` adds its parser, `run(arguments)` does the work.

`pipeline/cli.py` imports all of them to build its parser, so their heavy imports are inside functions.
"""
