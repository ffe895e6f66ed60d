"""LangChain's chat model: structures, tools, and a loop that calls a function and answers."""

import pydantic
import pytest
from needs import judge

pytestmark = pytest.mark.long(ci=True)


class Person(pydantic.BaseModel):
    """A person."""

    age: int = pydantic.Field(ge=0, le=99)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def model(served):
    langchain = judge("langchain_openai")
    return langchain.ChatOpenAI(
        model="demo",
        base_url=f"{served.address}/v1",
        api_key="none",
        temperature=0,
        max_tokens=200,
        max_retries=0,
    )


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structures(model, method):
    structured = model.with_structured_output(Person, method=method, include_raw=True)
    answer = structured.invoke("Who is it?")
    assert answer["parsing_error"] is None
    assert 0 <= answer["parsed"].age <= 99


def test_a_loop_that_calls_and_answers(model):
    bound = model.bind_tools([add], tool_choice="any", parallel_tool_calls=False, strict=True)
    messages = [("user", "What are 2 and 3?")]
    answer = bound.invoke(messages)
    [call] = answer.tool_calls
    assert call["name"] == "add"
    assert {name: type(value) for name, value in call["args"].items()} == {"a": int, "b": int}
    streamed = None
    for chunk in bound.stream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    assert [(each["name"], each["args"]) for each in streamed.tool_calls] == [("add", call["args"])]
    result = {"role": "tool", "tool_call_id": call["id"], "content": str(add(**call["args"]))}
    last = model.bind(max_tokens=8).invoke([*messages, answer, result])
    assert last.content
    assert not last.tool_calls
