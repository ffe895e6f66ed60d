"""Chat in turns: the conversation is a list of messages, to which each answer is added.

    python examples/chat.py 'Name a prime number.' 'Name a larger one.'

The target needs a chat template, which `demo` does not have.
"""

import argparse

from dart_jax import DartModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("questions", nargs="+", help="what the user says, turn by turn")
parser.add_argument("--model", default="smollm2", help="smollm2, or a target's directory")
parser.add_argument("--max-new-tokens", type=int, default=128)
args = parser.parse_args()

model = DartModel.from_pretrained(args.model)
messages = []
for question in args.questions:
    messages.append({"role": "user", "content": question})
    answer = model.generate(messages, max_new_tokens=args.max_new_tokens)
    messages.append({"role": "assistant", "content": answer.text})
    print(f"> {question}\n{answer.text}\n")
