"""The Responses API: a stream of typed events, and a second turn on the stored response."""

import os

from openai import OpenAI

url = os.environ.get("EAGLEGATE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("EAGLEGATE_API_KEY", "none"))

response_id = ""
for event in client.responses.create(model="demo", input="What is 84 - 37?", stream=True):
    if event.type == "response.created":
        response_id = event.response.id
    elif event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
print()

second = client.responses.create(
    model="demo", input="What is 20 + 5?", previous_response_id=response_id
)
print(second.output_text)
