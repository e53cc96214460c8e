"""Episodes with tools: whatever a program does, its episode goes on. Apart from the tests of
programs, whose sandboxes would be taken for processes of the pool."""

from __future__ import annotations

import asyncio
import time

from environment_pools import PATIENT, failure, hosts, until

from tasks.environments.base import Transition
from tasks.environments.pools.pool import EnvironmentPool
from tasks.environments.tools.programs import ProgramRunner
from tasks.environments.tools.questions import Counting
from tasks.environments.tools.tools import ToolsConfig
from tasks.isolation.isolation import Isolation

LIMIT_S = 30.0  # however busy the machine is
SHORT_S = 1.0  # of what never ends
NO_END = "It did not end within 1 s."
PYTHON = ToolsConfig(tools=("calculator", "python"), program_s=LIMIT_S)


class ToolEpisodes:
    """Takes turns as the player of an episode does."""

    def __init__(self, pool: EnvironmentPool, settings: ToolsConfig) -> None:
        self.pool, self.settings = pool, settings
        self.programs = ProgramRunner(Isolation.NAMESPACES)

    async def step(self, name: str, text: str) -> Transition:
        transition = await self.pool.step(name, text)
        return await self.programs.observe(self.settings, text, transition)


async def test_an_episode_goes_on_after_a_hostile_program() -> None:
    settings = PYTHON.model_copy(update={"program_s": SHORT_S, "max_turns": 9})
    question = settings.questions.draw(7)
    async with hosts(PATIENT, settings) as pool:
        tools = ToolEpisodes(pool, settings)
        assert await pool.reset("one", settings, 7) == question.text
        loop = await tools.step("one", "python\nwhile True: pass")
        assert (loop.observation, loop.truncated) == (NO_END, False)
        assert (
            "Permission" in (await tools.step("one", "```\nimport os; os.fork()\n```")).observation
        )
        settings_free = await tools.step("one", f"calc {question.expression}")
        assert settings_free.observation == question.gold
        last = await tools.step("one", f"answer {question.gold}")
        assert (last.reward, last.terminated) == (1.0, True)
        await pool.end("one")
        tools.programs.close()


async def test_a_question_is_worked_out_by_its_program() -> None:
    settings = ToolsConfig(tools=("python",), questions=Counting(), program_s=LIMIT_S)
    async with hosts(PATIENT, settings) as pool:
        tools = ToolEpisodes(pool, settings)
        for seed in range(6):
            question = settings.questions.draw(seed)
            assert await pool.reset("one", settings, seed) == question.text
            turn = await tools.step("one", f"python\n{question.program}")
            assert turn.observation == question.gold
            assert (await tools.step("one", f"answer {turn.observation}")).reward == 1.0
        tools.programs.close()


async def test_programs_of_several_episodes_run_side_by_side() -> None:
    async with hosts(PATIENT, PYTHON) as pool:
        tools = ToolEpisodes(pool, PYTHON)
        names = [str(number) for number in range(4)]
        for name in names:
            await pool.reset(name, PYTHON, 0)
        turns = await asyncio.gather(*(tools.step(name, f"python {name} + 1") for name in names))
        assert [turn.observation for turn in turns] == ["1", "2", "3", "4"]
        tools.programs.close()


async def test_closing_ends_a_program_at_once() -> None:
    async with hosts(PATIENT, PYTHON) as pool:
        tools = ToolEpisodes(pool, PYTHON)
        await pool.reset("one", PYTHON, 0)
        await tools.step("one", "python 1")
        running = asyncio.create_task(failure(tools.step("one", "python\nwhile True: pass")))
        await asyncio.sleep(0.2)
        began_s = time.monotonic()
        tools.programs.close()
        await until(running.done)
        assert time.monotonic() - began_s < LIMIT_S / 2
        await failure(tools.step("one", "python 1"))
