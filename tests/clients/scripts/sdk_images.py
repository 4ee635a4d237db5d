"""A picture through OpenAI's or Anthropic's SDK. Driven by test_images.py.

python sdk_images.py API URL FILE
"""

import base64
import json
import sys
from pathlib import Path

api, url, name = sys.argv[1:]
file = Path(name)
data_url = f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
if api == "messages":
    from anthropic import Anthropic

    source = {"type": "base64", "media_type": "image/png", "data": file}  # the SDK encodes it
    content = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
    message = Anthropic(base_url=url, api_key="none", max_retries=0).messages.create(
        model="demo", max_tokens=99, messages=[{"role": "user", "content": content}]
    )
    text, tokens = message.content[0].text, message.usage.input_tokens
else:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    if api == "chat":
        image = {"type": "image_url", "image_url": {"url": data_url}}
        content = [{"type": "text", "text": "What is this?"}, image]
        answer = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": content}]
        )
        text, tokens = answer.choices[0].message.content, answer.usage.prompt_tokens
    else:
        image = {"type": "input_image", "image_url": data_url, "detail": "auto"}
        content = [{"type": "input_text", "text": "What is this?"}, image]
        response = client.responses.create(
            model="demo", input=[{"role": "user", "content": content}]
        )
        text, tokens = response.output_text, response.usage.input_tokens
print(json.dumps({"text": text, "tokens": tokens}))
