"""Instructor: typed results in every mode it offers for a local server, one of them streamed.

python instructor_models.py URL
"""

from __future__ import annotations

import json
import sys

import instructor
from anthropic import Anthropic
from openai import OpenAI
from pydantic import BaseModel


class Report(BaseModel):
    city: str
    degrees: int


url = sys.argv[1]
found = {}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
    openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    client = instructor.from_openai(openai, mode=mode)
    play = "call" if mode is instructor.Mode.TOOLS else "text"
    asked = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"play:{play} Report."}],
        "response_model": Report,
    }
    made = client.chat.completions.create(**asked, max_retries=0)
    partial = list(client.chat.completions.create_partial(**asked, max_retries=0))
    found[mode.value] = [made.model_dump(), partial[-1].model_dump()]
anthropic = Anthropic(base_url=url, api_key="none", max_retries=0)
client = instructor.from_anthropic(anthropic, mode=instructor.Mode.ANTHROPIC_TOOLS)
made = client.messages.create(
    model="demo",
    max_tokens=200,
    messages=[{"role": "user", "content": "play:call Report."}],
    response_model=Report,
    max_retries=0,
)
found["anthropic"] = [made.model_dump()]
print(json.dumps(found))
