"""Answer many prompts at once and write one JSON record for each.

    python examples/offline_batch.py --model demo

Prompts of any lengths are decoded as one batch; every text is the one that plain decoding gives.
"""

import argparse
import json

from dart_jax import DartModel

PROMPTS = ["def mean(values):\n", "class Stack:\n", "import os\n\ndef walk(path):\n"]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2", help="smollm2, demo, or a target's directory")
parser.add_argument("--max-new-tokens", type=int, default=64)
args = parser.parse_args()

model = DartModel.from_pretrained(args.model)
completions = model.generate(PROMPTS, max_new_tokens=args.max_new_tokens, stop=["\n\n"])
for prompt, completion in zip(PROMPTS, completions, strict=True):
    record = {
        "prompt": prompt,
        "text": completion.text,
        "finish": completion.finish,
        "tau": round(completion.tau, 2),  # tokens emitted per verification
    }
    print(json.dumps(record))
