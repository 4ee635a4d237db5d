"""Tasks for Inspect: a plain answer, and an agent with a tool."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
from inspect_ai.tool import Tool, tool


@tool
def weather() -> Tool:
    async def execute(city: str) -> str:
        """Weather of a city.

        Args:
            city: Its name.
        """
        return f"rain in {city}"

    return execute


@task
def plain() -> Task:
    samples = [Sample(input="play:weather-said Weather?", target="Oslo") for _ in range(3)]
    return Task(dataset=samples, solver=generate(), scorer=includes())


@task
def agent() -> Task:
    samples = [Sample(input="play:weather-asked Weather?", target="rain in Oslo")]
    return Task(dataset=samples, solver=react(tools=[weather()]), scorer=includes())
