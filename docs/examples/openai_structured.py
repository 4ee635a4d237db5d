"""An answer that follows a JSON schema, parsed into a pydantic model."""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

url = os.environ.get("EAGLEGATE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("EAGLEGATE_API_KEY", "none"))


class Sum(BaseModel):
    answer: int
    sure: Literal["yes", "no"]


completion = client.chat.completions.parse(
    model="demo",
    messages=[{"role": "user", "content": "What is 84 - 37?"}],
    response_format=Sum,
    temperature=0,
)
print(completion.choices[0].message.parsed)
