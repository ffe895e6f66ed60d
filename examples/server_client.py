"""Ask a running server with OpenAI's client: an answer as it is written, then a call of a tool.

    dart-jax serve --model smollm2          # in another terminal
    python examples/server_client.py

`pip install openai` brings the client. Any program that speaks OpenAI's API works the same way.
"""

import argparse
import json
from typing import Any

from openai import OpenAI

WEATHER = {
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
args = parser.parse_args()

with OpenAI(base_url=args.url, api_key="none") as client:
    model = client.models.list().data[0].id
    question = [{"role": "user", "content": "How is the weather in Paris?"}]
    ask: dict[str, Any] = {"model": model, "messages": question, "max_tokens": 64, "temperature": 0}
    for chunk in client.chat.completions.create(**ask, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    ask |= {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"}
    answer = client.chat.completions.create(**ask, parallel_tool_calls=False)
    for call in answer.choices[0].message.tool_calls or []:
        print(call.function.name, json.loads(call.function.arguments)["city"])
