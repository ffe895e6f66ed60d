"""Grammars that are deep, long, wide, recursive or exponential: used or refused in a line, while
others are answered."""

import asyncio
import itertools
import json
import math
import os
import time

import numpy as np
import pytest
from serve_process import wait_until

from eval.serving.client import Answer, Client

# `DART_SOAK=500` sends so many.
COUNT = int(os.environ.get("DART_SOAK", "0"))
CLIENTS = 4
GONE = 0.25  # share of grammars after which a client hangs up
PATIENCE = 10  # seconds; 2 on an idle machine, but here other tests take the cores
PLAIN = {"prompt": "def ", "max_tokens": 1, "temperature": 0}
MILD = {"prompt": "def ", "max_tokens": 4, "regex": "[ab]{4}"}


def schema(definitions=(), **parts):
    """A schema, in an object with its definitions."""
    return inside(json.dumps(parts), json.dumps(dict(definitions)))


def inside(schema, definitions="{}"):
    """As JSON, since Python writes none that is so deep."""
    value = f'"properties": {{"v": {schema}}}, "required": ["v"]'
    return f'{{"type": "object", {value}, "$defs": {definitions}}}'


def chain(count, link):
    """Definitions, each of which has the next one."""
    refs = [{"$ref": f"#/$defs/d{n}"} for n in range(count + 1)]
    links = {f"d{n}": link(refs[n + 1]) for n in range(count)}
    return schema(links | {f"d{count}": {"type": "boolean"}}, **refs[0])


def items(part):
    return {"type": "array", "items": part}


def properties(*names, of):
    return {"type": "object", "properties": dict.fromkeys(names, of)}


def counted(of, count):
    return f"({of}{{1,{count}}}){{1,{count}}}"


def rules(rule, count, last='"z"'):
    """Rules in GBNF, each of which has the next one."""
    each = [f"r{n} ::= {rule.format(f'r{n + 1}')}" for n in range(count)]
    return "\n".join(["root ::= r0", *each, f"r{count} ::= {last}"])


# Name -> the least and the largest size, and the grammar of a size, as JSON where it is a schema.
SCHEMAS = {
    "references in a row": (10, 5000, lambda n: chain(n, lambda ref: ref)),
    "choices in a row": (10, 3000, lambda n: chain(n, lambda ref: {"anyOf": [{"const": 1}, ref]})),
    "the whole in itself": (1, 500, lambda n: schema(allOf=[{"$ref": "#"}] * n)),
    "doubled parts": (2, 60, lambda n: chain(n, lambda ref: {"allOf": [ref, ref]})),
    "doubled properties": (2, 200, lambda n: chain(n, lambda ref: properties("a", "b", of=ref))),
    "nested lists": (10, 20_000, lambda n: inside('{"type":"array","items":' * n + "{}" + "}" * n)),
    "many properties": (100, 5000, lambda n: schema(**properties(*map(str, range(n)), of={}))),
    "many values": (100, 50_000, lambda n: schema(enum=[f"value {i}" for i in range(n)])),
    "a long list": (10, 10**9, lambda n: schema(**items({"const": 1}), minItems=n, maxItems=2 * n)),
    "long lists of lists": (10, 30_000, lambda n: chain(4, lambda r: {**items(r), "maxItems": n})),
    "patterns": (2, 1000, lambda n: schema(type="string", pattern=counted("x", n))),
    "small numbers": (2, 300, lambda n: schema(type="number", minimum=0, maximum=10.0**-n)),
}
REGEXES = {
    "far back": (5, 2000, lambda n: f"(a|b)*a(a|b){{{n}}}"),
    "nested stars": (2, 5000, lambda n: "(" * n + "a" + ")*" * n),
    "nested counts": (2, 60, lambda n: "(" * n + "a" + "){2}" * n),
    "classes squared": (2, 1000, lambda n: counted(r"(\p{L}|[\p{Lo}\p{N}]{2,9})", n)),
    "anything between": (5, 2000, lambda n: ".*".join("abc"[i % 3] for i in range(n))),
}
CHOICES = {
    "many": (10, 50_000, lambda n: [f"choice {i}" for i in range(n)]),
    "long": (1000, 1_000_000, lambda n: ["x" * n]),
}
GRAMMARS = {
    "rules in a row": (10, 20_000, lambda n: rules('"a" {0} | "b"', n)),
    "doubled rules": (2, 200, lambda n: rules("{0} {0}", n)),
    "rules in a ring": (1, 2000, lambda n: rules("{0}", n, "root")),
    "left recursion": (1, 2000, lambda n: "root ::= root " + '"a" ' * n + '| "a"'),
    "ambiguous and empty": (1, 300, lambda n: "root ::= root " + "root " * n + '| ""'),
    "nested repetition": (2, 5000, lambda n: "root ::= " + "(" * n + '"a"' + ")*" * n),
    "repeated repetition": (2, 30_000, lambda n: "root ::= " + counted('"a"', n)),
    "many choices": (10, 20_000, lambda n: "root ::= " + "|".join(f'"c{i}"' for i in range(n))),
    "Lark": (2, 1000, lambda n: f"start: T T\nT: /{counted('x', n)}/"),
}
FAMILIES = [
    ("json_schema", SCHEMAS), ("tools", SCHEMAS), ("regex", REGEXES), ("guided_choice", CHOICES),
    ("grammar", GRAMMARS),
]  # fmt: skip
TOOLS = """{"messages": [{"role": "user", "content": "a"}], "max_tokens": 4,
"tool_choice": "required",
"tools": [{"type": "function", "function": {"name": "f", "strict": %s, "parameters": %s}}]}"""


def hostile_requests(count):
    """Name, path and content of at least `count` requests of random sizes, of all families."""
    rng = np.random.default_rng(0)
    every = [(field, name, *of[name]) for field, of in FAMILIES for name in of]
    turns = itertools.islice(itertools.cycle(every), max(count, len(every)))
    for field, name, least, most, grammar in turns:
        size = round(math.exp(rng.uniform(math.log(least), math.log(most))))
        made = grammar(size)
        written = made if field in ("json_schema", "tools") else json.dumps(made)
        path, content = "completions", f'{{"prompt": "a", "max_tokens": 4, "{field}": {written}}}'
        if field == "tools":
            path, content = "chat/completions", TOOLS % (rng.choice(["true", "false"]), written)
        yield f"{field}, {name}, {size:,}", f"/v1/{path}", content


async def besiege(address, requests):
    """The answers to hostile requests, by their names, and those to others meanwhile."""
    rng, answers, others, left = np.random.default_rng(0), {}, [], iter(requests)
    async with Client(address, timeout=120) as client:
        # Programs, and the first grammar, which a server takes once.
        for count in (1, CLIENTS):
            for answer in await asyncio.gather(*map(client.ask, [PLAIN, *[MILD] * count])):
                assert not answer.error, answer.error

        async def hostile():
            for name, path, content in left:
                # From 10 ms to 3 s: also while a grammar is compiled.
                patience = 10 ** rng.uniform(-2, 0.5) if rng.random() < GONE else None
                answers[name] = await client.send(path, content, patience=patience)

        async def other(ask):
            last = False
            while not last:  # also when all is over, since then the server should still be there
                last = siege.done()
                others.append(await ask())
                await asyncio.sleep(0.05)

        async def health():
            answer = Answer(start=time.perf_counter())
            status = (await client.http.get("/health", timeout=120)).status_code
            answer.error, answer.end = "" if status == 200 else str(status), time.perf_counter()
            return answer

        siege = asyncio.gather(*(hostile() for _ in range(CLIENTS)))
        await asyncio.gather(siege, other(lambda: client.ask(PLAIN)), other(health))
    return answers, others


def is_refused(answer):
    if answer.status != 400:
        return False
    message = json.loads(answer.error.partition(": ")[2])["error"]["message"]
    return bool(message) and "\n" not in message


@pytest.mark.long(ci=True)
def test_a_server_under_hostile_grammars(served):
    answers, others = asyncio.run(besiege(served.address, hostile_requests(COUNT)))
    wait_until(served.idle)
    assert served.process.poll() is None
    assert "Traceback" not in served.log.read_text()
    assert not [answer.error for answer in others if answer.error]
    assert max(answer.end - answer.start for answer in others) < PATIENCE
    stayed = {name: answer for name, answer in answers.items() if not answer.cancelled}
    failed = {name: answer.error for name, answer in stayed.items() if answer.error}
    refused = {name for name, answer in stayed.items() if is_refused(answer)}
    assert failed.keys() == refused, {name: failed[name] for name in failed.keys() - refused}
    assert 0 < len(refused) < len(stayed)
    assert any("--grammar-bytes" in error for error in failed.values())
