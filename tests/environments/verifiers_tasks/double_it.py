"""A package of the library `verifiers`: twice a number, in one turn or with a second try."""

import asyncio

import verifiers.v1 as vf


class Data(vf.TaskData):
    wanted: int


class DoubleTask(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "break the grader":
            raise RuntimeError("the grader broke")
        if trace.last_reply == "hang":
            await asyncio.sleep(600)
        return float(trace.last_reply == str(self.data.wanted))


class Config(vf.TasksetConfig):
    first: int = 0


class DoubleTaskset(vf.Taskset[DoubleTask, Config]):
    def load(self):
        return [
            DoubleTask(Data(prompt=f"twice {n}?", system_prompt="be short", wanted=2 * n), self.config.task)
            for n in range(self.config.first, 10)
        ]


class TryAgainConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class TryAgain(vf.Env[TryAgainConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            if segment.last_reply != str(task.data.wanted):
                await interaction.turn("again")


__all__ = ["DoubleTaskset"]
