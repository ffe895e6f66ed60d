"""Random JSON schemas that llguidance has all of."""

from hypothesis import strategies as st

_NAMES = st.sampled_from(["a", "b", "name", "žluť", "two words"])
_LEAVES = st.one_of(
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda x: {"type": x}),
    st.fixed_dictionaries({"type": st.just("integer"), "minimum": st.integers(-9, 9)}),
    st.fixed_dictionaries({"type": st.just("string"), "maxLength": st.integers(0, 5)}),
    st.lists(
        st.one_of(_NAMES, st.integers(-(2**53), 2**53), st.none()), min_size=1, max_size=3
    ).map(lambda x: {"enum": x}),
    _NAMES.map(lambda x: {"const": x}),
    st.sampled_from(["^[a-c]{2,4}$", "x+", "^(yes|no)"]).map(
        lambda x: {"type": "string", "pattern": x}
    ),
)
SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner, "maxItems": st.integers(0, 3)}
        ),
        st.dictionaries(_NAMES, inner, max_size=3).flatmap(
            lambda properties: st.fixed_dictionaries(
                {
                    "type": st.just("object"),
                    "properties": st.just(properties),
                    "required": st.lists(st.sampled_from([*properties, "a"]), unique=True),
                    "additionalProperties": st.just(False),
                }
                if "a" in properties
                else {
                    "type": st.just("object"),
                    "properties": st.just(properties),
                    "additionalProperties": st.booleans(),
                }
            )
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda x: {"anyOf": x}),
    ),
    max_leaves=5,
)
# Keywords that allow the same texts wherever they stand.
NOISE = st.sampled_from(
    [
        {"title": "T", "description": "d", "$comment": "c", "$schema": "https://example.org"},
        {"default": {"$ref": "#/nowhere"}, "examples": [2**60, {"not": {}}], "deprecated": True},
        {"readOnly": True, "writeOnly": False, "example": 1, "$anchor": "here"},
        {"format": "path"}, {"format": "int32"}, {"x-order": 3, "xml": {"name": "a"}},
        {"externalDocs": {"url": "u"}, "discriminator": {"propertyName": "a"}},
        {"uniqueItems": False}, {"minItems": 0, "minLength": 0, "minProperties": 0},
        {"dependentRequired": {}, "dependentSchemas": {}}, {"not": False, "nullable": False},
        {"unevaluatedItems": True}, {"propertyNames": {"type": "string"}},
        {"$defs": {"unused": {"uniqueItems": True}}},
    ]
)  # fmt: skip
