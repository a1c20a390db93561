"""Environments for another interpreter: standard library only, JSON values in and out."""

import os
import subprocess
import sys
import time


class Echo:
    """Repeats what it is told, and acts on some words."""

    deterministic = True

    def __init__(self, params, prompt, task_seed, sample_seed):
        self.facts = {"params": params, "prompt": prompt, "seeds": [task_seed, sample_seed]}
        self.count = 0

    def start(self):
        print("a line on standard output, which is no answer")
        return {"messages": [{"role": "user", "content": repr(self.facts)}]}

    def step(self, message):
        self.count += 1
        words = message["content"].split()
        answer = {"messages": [{"role": "user", "content": f"{self.count} {message['content']}"}], "reward": 0.5}
        if words[:1] == ["sleep"]:
            time.sleep(float(words[1]))
        elif words == ["die"]:
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            os._exit(3)
        elif words == ["raise"]:
            raise KeyError("broken")
        elif words == ["garbage"]:
            os.write(SECRET, b"this is no answer\n")
        elif words == ["silent"]:
            return {}
        elif words == ["speak for me"] or words == ["forge"]:
            return {"messages": [{"role": "assistant", "content": "mine"}]}
        elif words == ["nan"]:
            return {**answer, "reward": float("nan")}
        elif words == ["modules"]:
            import verifiers

            text = f"{verifiers.__file__} {'verizero' in sys.modules} {sys.stdin.read()!r}"
            return {"messages": [{"role": "user", "content": text}]}
        elif words == ["child"]:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            return {"messages": [{"role": "user", "content": str(child.pid)}]}
        elif words == ["stop"]:
            return {"done": True, "outcome": {"status": "graded", "score": 0.25, "reason": "stopped"}}
        return answer

    def close(self):
        with open(self.facts["params"]["log"], "a") as log:
            log.write(f"closed {self.facts['seeds'][1]}\n")


def _far_output():
    """The descriptor of the pipe on which answers leave: the only pipe for writing besides standard error."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2:
            try:
                os.write(number, b"")
            except OSError:
                continue
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                return number
    return -1


SECRET = _far_output()


def echo(params, prompt, task_seed, sample_seed):
    return Echo(params, prompt, task_seed, sample_seed)


class Sized:
    """Says how large the turn was that it answers."""

    def __init__(self, params, prompt, task_seed, sample_seed):
        self.wants, self.told = params["wants"], []

    def start(self):
        return {"messages": [{"role": "user", "content": "begin"}], "counts_tokens": self.wants, "takes_unread": True}

    def count_tokens(self, prompt_tokens, sampled_tokens, was_cut):
        self.told.append([prompt_tokens, sampled_tokens, was_cut])

    def step(self, message):
        return {"messages": [{"role": "user", "content": repr(self.told)}]}

    def close(self):
        pass
