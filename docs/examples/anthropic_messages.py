"""Anthropic's messages, streamed."""

import os

from anthropic import Anthropic

url = os.environ.get("EAGLEGATE_URL", "http://127.0.0.1:8000")
client = Anthropic(base_url=url, api_key=os.environ.get("EAGLEGATE_API_KEY", "none"))

question = {"role": "user", "content": "What is 84 - 37?"}
with client.messages.stream(model="demo", max_tokens=100, messages=[question]) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    print()
    print(stream.get_final_message().usage)
