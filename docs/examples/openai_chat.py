"""A chat completion, and how speculative decoding did on it."""

import os

from openai import OpenAI

url = os.environ.get("EAGLEGATE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("EAGLEGATE_API_KEY", "none"))

completion = client.chat.completions.create(
    model="demo",
    messages=[{"role": "user", "content": "What is 84 - 37?"}],
    extra_body={"per_request_spec_decode_metrics": "summary"},
)
print(completion.choices[0].message.content)
print(completion.model_extra["metrics"]["speculative_decoding"])
