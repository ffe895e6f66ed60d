"""Limits of structures: what they measure, and that it takes no time."""

import contextlib
import json
import random
import time

import pytest

from dart_jax.errors import UserError
from dart_jax.grammar.limits import GrammarLimits, _longest, reference_depth, source_size
from dart_jax.grammar.outputs import StructuredOutputs


def check(limits, outputs):
    limits.check_size(outputs.kind, source_size(outputs))
    limits.check_depth(outputs)


def chain(length, last):
    links = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": last}}


def rules(length, last, sign):
    root = "root ::= a0" if sign == "::=" else "start: a0"
    middle = [f'a{n} {sign} "x" a{n + 1} | [y] "(" # a0' for n in range(length)]
    return "\n".join([root, *middle, f"a{length} {sign} {last}"])


def test_chains_count_by_their_length():
    for length in (1, 50, 1000):
        schema = chain(length, {"type": "string"})
        assert reference_depth(StructuredOutputs(json=schema)) == length + 2
        assert reference_depth(StructuredOutputs(json=json.dumps(schema))) == length + 2
        # Through parts of schemas, and all of a circle.
        links = {f"a{n}": {"items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(length)}
        circle = {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {"$ref": "#/$defs/a0"}}}
        assert reference_depth(StructuredOutputs(json=circle)) == length + 1 + 2
        for sign in ("::=", ":"):
            for last in ('"z"', 'a0 "z"'):
                outputs = StructuredOutputs(grammar=rules(length, last, sign))
                assert length + 2 <= reference_depth(outputs) <= length + 4
        schema = json.dumps(chain(length, {}))
        lark = StructuredOutputs(grammar=f'start: "a" x\nx: %json {schema} "b"')
        assert reference_depth(lark) == length + 2 + 2


def test_parts_within_parts_count():
    schema = {}
    for _ in range(150):
        schema = {"type": "array", "items": schema}
    assert reference_depth(StructuredOutputs(json=schema)) == 151
    group = "root ::= " + "(" * 150 + '"a"' + ")" * 150
    assert reference_depth(StructuredOutputs(grammar=group)) == 151
    assert reference_depth(StructuredOutputs(regex="(a)")) == 0


def test_usual_structures_are_within_the_limits():
    tree = {"properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": tree}}
    for structure in ({"json": schema}, {"json": True}, {"json_object": True}, {"choice": ["a"]}):
        check(GrammarLimits(), StructuredOutputs.of(structure))


@pytest.mark.parametrize("seed", range(20))
def test_longest_path(seed):
    """As found by merging what leads to each other."""
    draw = random.Random(seed)
    count = draw.randint(1, 12)
    leads = [[x for x in range(count) if draw.random() < 0.12] for _ in range(count)]
    weights = [draw.randint(0, 3) for _ in range(count)]
    reach = [{n} for n in range(count)]
    for _ in range(count):
        for n in range(count):
            reach[n] |= {y for x in leads[n] for y in reach[x]}
    group = [frozenset(x for x in reach[n] if n in reach[x]) for n in range(count)]

    def longest(members):
        after = {group[x] for n in members for x in leads[n]} - {members}
        return sum(weights[n] for n in members) + max(map(longest, after), default=0)

    assert _longest(leads, weights) == max(map(longest, group))


def test_messages_name_the_limit():
    limits = GrammarLimits(source_bytes=100, depth=5)
    with pytest.raises(UserError, match=r"the regex has 1,000 bytes, more than the 100 of --gramm"):
        check(limits, StructuredOutputs(regex="é" * 500))
    with pytest.raises(UserError, match=r"is 6 levels deep, more than the 5 of --grammar-depth"):
        check(limits, StructuredOutputs(grammar="root ::= a\na ::= (((([b]))))"))
    assert source_size(StructuredOutputs(json={"const": "é"})) == len('{"const": "é"}'.encode())


HOSTILE = {
    "deep JSON": "[" * 32_000 + "]" * 32_000,
    "deep schema": '{"items":' * 6_000 + "1" + "}" * 6_000,
    "wide": json.dumps({"properties": {f"p{n}": {"$ref": "#"} for n in range(2_500)}}),
    "one name": json.dumps(
        {"$defs": {f"{n}": {"$anchor": "a", "$ref": "#a"} for n in range(1_400)}}
    ),
    "long pointers": json.dumps({"anyOf": [{"$ref": "#" + "/anyOf/0" * 30} for _ in range(200)]}),
    "many ids": json.dumps({"allOf": [{"$id": f"{n}", "$ref": f"{n + 1}"} for n in range(1_800)]}),
}
HOSTILE_GRAMMARS = {
    "brackets": "root ::= " + "(" * 60_000,
    "one word": "root ::= " + "x" * 60_000,
    "one line": "start: " + "x " * 30_000,
    "quotes": 'start: "' + "\\" * 60_000,
    "sets": "root ::= " + "[" * 60_000,
    "slashes": "start: " + "/" * 60_000,
    "JSON": "start: a\n" + "a: %json {}\n" * 5_000,
    "rules": "\n".join(f"r{n} ::= r{n * 7 % 4_000} r{n * 3 % 4_000}" for n in range(2_800)),
}


@pytest.mark.parametrize("name", [*HOSTILE, *HOSTILE_GRAMMARS])
def test_hostile_structures_take_no_time(name):
    if name in HOSTILE:
        outputs = StructuredOutputs(json=HOSTILE[name])
    else:
        outputs = StructuredOutputs(grammar=HOSTILE_GRAMMARS[name])
    began = time.thread_time()
    with contextlib.suppress(UserError):
        check(GrammarLimits(source_bytes=10**6), outputs)
    assert time.thread_time() - began < 1  # 0.1 on an idle machine
