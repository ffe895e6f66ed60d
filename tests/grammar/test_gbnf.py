"""GBNF: every feature, and random grammars, allow the texts that they should."""

import random
import re

import pytest
import regex
from grammar_texts import GRAMMARS, judge

from dart_jax.errors import UserError
from dart_jax.grammar.gbnf import is_lark, lark_of
from dart_jax.grammar.outputs import StructuredOutputs

JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (r'root ::= "caf\u00e9" [\U0001D11E-\U0001D11F]? "\xe9\x00"', ["café𝄞é\0", "caféé\0"], []),
        (r'root ::= "\"/\\.*+?()[]{}|^$" "\t\r\n" "//x"', ['"/\\.*+?()[]{}|^$\t\r\n//x'], []),
        ('root ::= "é\nb"', ["é\nb"], ["é b"]),
        (r"root ::= [\u00e0-\u00ffz]+ [\x00-\x1f\x7f]", ["éàz\x7f"], ["a\n", "é"]),
        (r"root ::= [a-zA-Z0-9_\-]+ [\]\[^] [a^]?", ["a-b]", "x[", "x^^", "x^a"], ["x]b"]),
        (r"root ::= [^a-c\n]+", ["d", "é", "\t𝄞"], ["\n", "abc"]),
        (r"root ::= [a-] [-z] [^^-] [&&~~] [!--]", ["a-x&,", "--x~-"], ["-z^&-", "bzx&-"]),
        ('root ::= "a" [^] [] "b"', ["ab"], ["axb"]),
        (r"root ::= [/\\]+ .{2}", ["/\\\n\n", "/é𝄞", "//a"], []),
        ('root ::= "a"{2} "b"{1,} "c"{0,2} "d"{ 1 , 2 }', ["aabd", "aabbccdd"], ["abd", "aabcccd"]),
        ('root ::= ("a"*)* "b"? ("c" | "d"?)+', ["b", "aab", "", "cdc"], ["e"]),
        ('root ::= "a"{0} ("b" | x{2,3}){2}\nx ::= [xy]', ["bb", "bxyx", "xxyy"], ["b"]),
        # Rules, comments and lines.
        ("# one\nroot ::= a-b a_b A-B # two\n\na-b ::= [1]\na_b ::= [2]\nA-B ::= [3]", ["123"], []),
        ('Root ::= "x"\nroot ::= Root root2 rOOt\nroot2 ::= "y"\nrOOt ::= "z"', ["xyz"], ["xxz"]),
        ('root ::= (\n "a" # (\n | "b"\r\n\n)+ |\n "c"', ["ab", "c"], [""]),
        ("root ::= start\nstart ::= R0 r0 L0\nR0 ::= [1]\nr0 ::= [2]\nL0 ::= [3]", ["123"], []),
        ('root ::= "a" ( | "b") ("c" | ) ""', ["a", "abc", "ac"], ["ca"]),
        # What comes next decides how much a part takes.
        ('root ::= "(" root ")" | [a-z]* "z"', ["abz", "(abzz)"], ["(ab)"]),
        (
            'root ::= "if" x | "i" y | "[" root "]"\nx ::= "x"\ny ::= "fy"',
            ["ifx", "ify", "[ify]"],
            [],
        ),
        ('root ::= "aa" "b" | "a" "ab" "c" | "(" root ")"', ["aab", "aabc", "(aabc)"], []),
        (JSON, ['{"a": [1,2.5e3,true,{"x":null}], "b":""}', '{"a" : 1}'], ["[1]", '{"a":1.}']),
    ],
)
def test_features(grammar, good, bad):
    follows = judge(grammar=grammar)
    assert [text for text in good if not follows(text)] == []
    assert [text for text in bad if follows(text)] == []


_LEAVES = ('"a"', '"ab"', '"b"', '"ba"', "[ab]", "[^a]", '"c"', "[a-c]", '"abc"', '""', ".")


PART = r'"([^"]*)"|\b(root|x|y|z)\b|\s+'


def _expression(draw, depth, names):
    kind = draw.random()
    if depth == 0 or kind < 0.35:
        return draw.choice([*_LEAVES, *names])
    parts = [_expression(draw, depth - 1, names) for _ in range(draw.randint(1, 3))]
    if kind < 0.55:
        return " ".join(parts)
    times = draw.choice(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}"]) if kind > 0.75 else ""
    return f"({' | '.join(parts)}){times}"


def regex_of(grammar):
    """What matches the texts of such a grammar: a regular expression whose groups are its rules."""

    def part(match):
        quoted, name = match.groups()
        return f"(?&{name})" if name else regex.escape(quoted or "")

    rules = [rule.split(" ::= ") for rule in grammar.splitlines()]
    groups = [f"(?P<{name}>{re.sub(PART, part, body)})" for name, body in rules]
    return regex.compile(f"(?s)(?(DEFINE){''.join(groups)})(?&root)")


def test_random_grammars():
    """Rules refer to later ones, or to any after a character, so that none is left recursive."""
    draw, matched, recursive = random.Random(0), 0, 0
    for _ in range(30):
        rules, names = [], ["root", "x", "y", "z"]
        for n, name in enumerate(names):
            alternatives = [_expression(draw, 2, names[n + 1 :]) for _ in range(2)]
            if draw.random() < 0.9:
                alternatives.append(f'"{draw.choice("abc(")}" {_expression(draw, 1, names)}')
            rules.append(f"{name} ::= {' | '.join(alternatives)}")
        grammar = "\n".join(rules)
        expression, follows = regex_of(grammar), judge(grammar=grammar)
        recursive += "\nL1:" in lark_of(grammar)
        for _ in range(20):
            text = "".join(draw.choice("abcab(") for _ in range(draw.randint(0, 6)))
            matches = expression.fullmatch(text) is not None
            matched += matches
            assert follows(text) == matches, (grammar, text)
    assert matched > 50
    assert recursive > 3


def test_json_is_read_in_few_lexemes():
    """Those of single characters are a hundred times slower."""
    lines = [line for line in lark_of(JSON).splitlines() if line.startswith("L")]
    assert 8 <= len(lines) <= 12


def test_lark_is_told_from_gbnf():
    assert is_lark('%llguidance {}\nstart: "a"')
    assert is_lark('start : "a"')
    assert not is_lark('start ::= "a"\nroot ::= start')


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("root ::= nope", "there is no rule 'nope'"),
        ('start ::= "a"', "there is no rule 'root'"),
        ('root ::= "a")', "there must be a rule, in line 1 at ')'"),
        ('root ::= "a', "this is no part of a rule, in line 1"),
        (r'root ::= "\q"', "this is no part of a rule, in line 1"),
        ('root ::= "a"\nx ::= ("b"', "there is no ')'"),
        ("root ::= *", "there is nothing to repeat"),
        ('root ::= "a"{}', "no number of times"),
        ('root ::= "a"{99999999999}', "no number of times"),
        ('x ::= "a"\nroot ::= x{3,2}', "fewer than the least, in line 2 at '{3,2}'"),
        (r'root ::= "\ud800"', "is no character, in line 1"),
        (r"root ::= [a-\U00110000]", "is no character, in line 1"),
        ("root ::= [z-a]", "a range goes backwards, in line 1 at '[z-a]'"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "the grammar is nested too deep"),
        ("root ::= root", "it allows no text"),
    ],
)
def test_what_is_wrong(grammar, message):
    with pytest.raises(UserError) as caught:
        GRAMMARS.check(StructuredOutputs(grammar=grammar))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
