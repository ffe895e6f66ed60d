"""Limits of structures."""

import pytest

from dart_jax.errors import UserError
from dart_jax.grammar.limits import GrammarLimits, source_size
from dart_jax.grammar.outputs import StructuredOutputs


def test_sizes():
    assert source_size(StructuredOutputs(json={"const": "é"})) == len('{"const": "é"}'.encode())
    assert source_size(StructuredOutputs(json_object=True)) == 0
    limits = GrammarLimits(source_bytes=100)
    limits.check_size("the regex", 100)
    with pytest.raises(UserError, match=r"the regex has 101 bytes, more than the 100 of --gramm"):
        limits.check_size("the regex", 101)
