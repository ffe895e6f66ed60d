"""The requests of a soak: all options of completions and chats, mixed at random."""

import json
import math

import numpy as np

from dart_jax.data.stdlib import HELD_OUT, held_out_files, read
from dart_jax.engine.request import MOST_LOGPROBS

# Longest prompt and answer, and what templates, tools and other tokens of the same text add to a
# prompt, in tokens.
_PROMPT, _ANSWER, _ADDED = 1200, 200, 150
# Beginnings that prompts share.
_SHARED = 8
# Strings that occur in library code, early or late, and one that does not.
_STOPS = ("\n\n", "return", "self", "):\n", "    if ", "\x00 never")
# Characters of several tokens.
_RARE = "naïve 漢字 🙂 "

# Options that go with all others: how many of the requests with many options have each, and with
# which values.
_OPTIONS = {
    "top_p": (0.5, lambda draw: draw.between(0.2, 1.0)),
    "top_k": (0.5, lambda draw: draw.one_of([-1, 1, 5, 50])),
    "min_p": (0.4, lambda draw: draw.between(0.0, 0.3)),
    "repetition_penalty": (0.3, lambda draw: draw.between(0.8, 1.6)),
    "presence_penalty": (0.3, lambda draw: draw.between(-2.0, 2.0)),
    "frequency_penalty": (0.3, lambda draw: draw.between(-2.0, 2.0)),
    "logit_bias": (0.4, lambda draw: draw.bias()),
    "stop": (0.4, lambda draw: [draw.one_of(_STOPS) for _ in range(draw.length(3))]),
    "stop_token_ids": (0.2, lambda draw: draw.ids(3)),
    "include_stop_str_in_output": (0.4, lambda draw: True),
    "skip_special_tokens": (0.3, lambda draw: False),
    "ignore_eos": (0.6, lambda draw: True),
    "n": (0.3, lambda draw: draw.one_of([2, 3, 7])),
    "prompt_logprobs": (0.2, lambda draw: draw.one_of([0, 1, 5, MOST_LOGPROBS])),
    "return_tokens_as_token_ids": (0.3, lambda draw: True),
    "truncate_prompt_tokens": (0.2, lambda draw: draw.one_of([-1, 1, 30, 200])),
    "draft_group": (0.4, lambda draw: draw.one_of(["one", "two"])),
    "stream_options": (0.3, lambda draw: {"continuous_usage_stats": True}),
}


def mixed_requests(tokenizer, count, seed, max_length):
    """Requests to a server with this tokenizer and longest text: greedy and sampled ones, with no
    option, some, or many at once; completions, and chats if there is a template for them."""
    draw = _Draw(tokenizer, seed, max_length)
    return [draw.request() for _ in range(count)]


class _Draw:
    """Draws requests and their parts."""

    def __init__(self, tokenizer, seed, max_length):
        self._tokenizer = tokenizer
        modules = [read(path) for group in HELD_OUT for path in held_out_files(group)]
        self._library = np.array(tokenizer.encode("\n".join(modules)))
        self._rng = np.random.default_rng(seed)
        self._answer = min(_ANSWER, max_length // 3)
        self._prompt = min(_PROMPT, max_length - self._answer - _ADDED)
        self._shared = [self._place(self._prompt) for _ in range(_SHARED)]

    def request(self):
        share = self.one_of([0.0, 0.3, 1.0])
        fields = {"max_tokens": self.length(self._answer), "seed": int(self._rng.integers(2**32))}
        fields["temperature"] = self.one_of([0.0, 0.0, 0.3, 1.0])
        for name, (often, value) in _OPTIONS.items():
            if self.chance(share * often):
                fields[name] = value(self)
        chats = bool(self._tokenizer.chat_template) and self.chance(0.4)
        fields |= self._chat(share) if chats else self._completion(share)
        if self.chance(0.2):
            fields |= self._structure(json_only="tools" in fields)
        elif "tools" not in fields and self.chance(0.3 * share):
            fields["min_tokens"] = int(self._rng.integers(fields["max_tokens"] + 1))
        return fields

    def _completion(self, share):
        sizes = [self.length(self._prompt) for _ in range(self.one_of([1, 1, 1, 3]))]
        prompts = [self._words(size) for size in sizes]
        if self.chance(0.5):
            prompts = [self._text(prompt) for prompt in prompts]
        fields = {"prompt": prompts if len(prompts) > 1 else prompts[0]}
        if self.chance(0.4 * share):
            fields["logprobs"] = self.one_of([0, 1, 5, MOST_LOGPROBS])
        if self.chance(0.3 * share):
            fields |= {"echo": True, "truncate_prompt_tokens": None}
            fields |= {"max_tokens": 0} if self.chance(0.3) else {}
        return fields

    def _chat(self, share):
        turns = self.one_of([1, 1, 3])
        sizes = [self.length(self._prompt // (2 * turns)) for _ in range(turns)]
        roles = ("user", "assistant", "user")
        texts = [self._text(self._words(size)) for size in sizes]
        said = zip(roles, texts, strict=False)
        fields = {"messages": [{"role": role, "content": text} for role, text in said]}
        if self.chance(0.4 * share):
            fields |= {"logprobs": True, "top_logprobs": self.one_of([0, 1, 5, MOST_LOGPROBS])}
        if self.chance(0.3):
            fields |= self._tools()
        return fields

    def _tools(self):
        functions = [
            {"name": name, "parameters": self._schema(), "strict": self.chance(0.5)}
            for name in ("f", "g")[: self.one_of([1, 2])]
        ]
        choices = ["auto", "required", {"type": "function", "function": {"name": "f"}}]
        return {
            "tools": [{"type": "function", "function": each} for each in functions],
            "tool_choice": self.one_of(choices),
            "parallel_tool_calls": self.chance(0.5),
        }

    def _structure(self, *, json_only):
        schema = self._schema()
        described = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
        choice = [self._text(self.ids(size)) for size in (1, 2, 5)]
        structures = [
            {"response_format": {"type": "json_object"}},
            {"response_format": described},
            {"json_schema": json.dumps(schema)},
            {"guided_json": schema},
            {"regex": f"[a-c]{{2,{self.length(60)}}}(one|two)\\d+"},
            {"structured_outputs": {"choice": choice}},
            {"guided_choice": choice},
            {"grammar": 'root ::= "a" root "b" | [c-z]+ "\\n"'},
            {"ebnf": 'start: item ("," item)*\nitem: /[0-9]{1,4}/ | "(" start ")"'},
        ]
        return self.one_of(structures[:4] if json_only else structures)

    def _schema(self):
        kinds = [
            {"type": "integer", "minimum": 0, "maximum": self.length(10_000)},
            {"type": "string", "maxLength": self.length(40)},
            {"enum": ["one", 2, None, self._text(self.ids(2))]},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": self.length(20)},
        ]
        names = [f"name_{number}" for number in range(self.length(4))]
        return {
            "type": "object",
            "properties": {name: self.one_of(kinds) for name in names},
            "required": names[: int(self._rng.integers(len(names) + 1))],
            "additionalProperties": False,
        }

    def _words(self, size):
        """Library code, half of which begins as other prompts."""
        own = self.length(size) if self.chance(0.5) else size
        shared = self._cut(self.one_of(self._shared), size - own) if own < size else []
        return shared + self._cut(self._place(own), own)

    def _place(self, size):
        return int(self._rng.integers(len(self._library) - size))

    def _cut(self, place, size):
        return self._library[place : place + size].tolist()

    def _text(self, tokens):
        return _RARE * self.chance(0.1) + self._tokenizer.decode(tokens)

    def bias(self):
        """Biases of one token or of many."""
        strongest = self.one_of([2.0, 100.0])
        ids = self.ids(self.length(300))
        return {str(token): self.between(-strongest, strongest) for token in ids}

    def ids(self, count):
        return [int(token) for token in self._rng.choice(self._library, count)]

    def length(self, most):
        """A number from 1 to `most`, of which short ones are as frequent as long ones."""
        return round(math.exp(self._rng.uniform(0, math.log(most))))

    def between(self, low, high):
        return float(self._rng.uniform(low, high))

    def one_of(self, values):
        return values[int(self._rng.integers(len(values)))]

    def chance(self, share):
        return bool(self._rng.random() < share)
