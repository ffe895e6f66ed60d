"""Have the model write JSON that a schema allows, and read it.

    python examples/structured_output.py --model demo

The grammar holds at every node of a draft tree, so drafting does not change the text.
"""

import argparse
import json

from dart_jax import DartModel

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 16},
        "celsius": {"type": "integer", "minimum": -40, "maximum": 50},
        "sky": {"enum": ["clear", "cloudy", "rain"]},
    },
    "required": ["city", "celsius", "sky"],
    "additionalProperties": False,
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2", help="smollm2, demo, or a target's directory")
args = parser.parse_args()

model = DartModel.from_pretrained(args.model)
completion = model.generate(
    "The weather in Paris, as JSON: ", max_new_tokens=128, structured_outputs={"json": SCHEMA}
)
weather = json.loads(completion.text)
print(f"{weather['city']}: {weather['celsius']} degrees, {weather['sky']}")
