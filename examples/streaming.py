"""Stream several texts at once, and let other tasks run in the meantime.

    python examples/streaming.py --model demo

`stream` yields pieces of text while the model writes. A piece knows its row in the batch and how it
came about: drafted and accepted, or the target's own token. In an event loop, use `async for`.
"""

import argparse
import asyncio

from dart_jax import DartModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2", help="smollm2, demo, or a target's directory")
parser.add_argument("--max-new-tokens", type=int, default=48)
args = parser.parse_args()

model = DartModel.from_pretrained(args.model)
options = {"max_new_tokens": args.max_new_tokens, "temperature": 0.7, "seed": 1}

for piece in model.stream("def mean(values):\n", **options):
    print(f"[{piece}]" if piece.drafted else piece, end="", flush=True)
print()


async def main() -> None:
    """Collects two texts as they come."""
    texts = ["", ""]
    async for piece in model.stream(["class Stack:\n", "import os\n"], **options):
        texts[piece.row] += piece
    print(*texts, sep="\n---\n")


asyncio.run(main())
