"""Anthropic's tool runner. Driven by test_tool_runners.py.

python anthropic_runner.py URL [stream]
"""

import json
import sys

from anthropic import Anthropic, beta_tool

url, streams = sys.argv[1], sys.argv[2:] == ["stream"]
cities = []


@beta_tool
def weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: Its name.
    """
    cities.append(city)
    return "rain"


runner = Anthropic(base_url=url, api_key="none", max_retries=0).beta.messages.tool_runner(
    model="demo",
    max_tokens=400,
    tools=[weather],
    system="Be brief.",
    messages=[{"role": "user", "content": "play:weather How is it in Oslo?"}],
    stream=streams,
)
last = None
for turn in runner:
    last = turn.get_final_message() if streams else turn
print(json.dumps({"cities": cities, "text": last.content[-1].text}))
