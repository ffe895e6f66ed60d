"""Chats through the templates of all families: instructions, roles, thoughts, and what
transformers makes of the same messages."""

import random

import jinja2
import pytest
from chat_templates import FAMILIES, PARTS, write_families
from refusals import report

NO_SYSTEM = ("Gemma 2", "Phi-3")
ELSEWHERE = ("Mistral v7", "DeepSeek-V3")  # instructions, not in order
ALTERNATING = ("Mistral v7", "Gemma 2")


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """A tokenizer of each family."""
    return write_families(tmp_path_factory.mktemp("families"))


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def tokenizer(wrapped, family):
    return wrapped[family]


def system(text, role="system"):
    return {"role": role, "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **fields):
    return {"role": "assistant", "content": text, **fields}


def placed(text, *parts):
    """The places of texts, each of which is there once."""
    assert [text.count(part) for part in parts] == [1] * len(parts), text
    return [text.index(part) for part in parts]


def test_chats_that_a_template_takes_are_those_of_transformers(tokenizer, family):
    """With instructions where it shows them, and thoughts in the field that it reads."""
    draw = random.Random(0)
    words = ["Hello.", " a  b \n", "", "Of </think>.", "<think>", "d\n\ne</s>", "日本"]
    field, taken = "thinking" if family == "LFM2.5" else "reasoning_content", 0
    for _ in range(40):
        chat = [system("Be brief.")] if draw.random() < 0.5 else []
        for _ in range(draw.randrange(1, 4)):
            thoughts = {"reasoning_content": draw.choice(["", "Hm.", "Of </think>."])}
            fields = thoughts if draw.random() < 0.5 else {}
            chat += [user(draw.choice(words)), assistant(draw.choice(words[:5]), **fields)]
        chat = chat[: len(chat) - draw.randrange(2)] if len(chat) > 2 else chat
        if draw.random() < 0.3:
            chat.insert(draw.randrange(len(chat) + 1), system("No </think>."))
        theirs = [
            {field if name == "reasoning_content" else name: value for name, value in each.items()}
            for each in chat
        ]
        if FAMILIES[family] == PARTS:
            for each in theirs:
                each["content"] = [{"type": "text", "text": each["content"]}]
        try:
            expected = tokenizer.wrapped.apply_chat_template(
                theirs, tokenize=False, add_generation_prompt=True
            )
        except jinja2.TemplateError:
            continue
        if not all(each["content"] in expected for each in chat if each["role"] == "system"):
            continue
        before = [dict(each) for each in chat]
        assert tokenizer.render_chat(chat) == expected
        assert chat == before
        taken += 1
    assert taken >= 10


def test_fields_that_say_nothing_are_none(tokenizer):
    nothing = {"refusal": None, "annotations": [], "audio": None, "tool_calls": []}
    chat = [user("How?"), assistant("So."), user("Why?")]
    expected = tokenizer.render_chat(chat)
    assert tokenizer.render_chat([chat[0], chat[1] | nothing, chat[2]]) == expected
    chat[1]["content"] = ""
    empty = tokenizer.render_chat(chat)
    for fields in ({"role": "assistant"}, assistant(None) | nothing):
        assert tokenizer.render_chat([chat[0], fields, chat[2]]) == empty


def test_instructions_are_somewhere(tokenizer, family):
    """Those that have no place precede the user's next turn, or are one."""
    chats = [
        [system("One."), user("A?"), assistant("B."), user("C?")],
        [system("One."), system("Two.", "developer"), user("A?"), assistant("B."), user("C?")],
        [system("One."), assistant("B."), user("C?")],
        [user("A?"), system("One."), assistant("B."), user("C?"), system("Two.")],
        [system("One."), user("A?"), assistant("B."), system("Two."), system("Three."), user("C?")],
        [system("One."), system("Two.", "developer")],
    ]
    for chat in chats:
        text = tokenizer.render_chat(chat)
        places = placed(text, *(message["content"] for message in chat))
        if family not in ELSEWHERE:
            assert places == sorted(places)


@pytest.mark.parametrize("name", NO_SYSTEM)
def test_a_template_without_system_messages(wrapped, name):
    chat = [user("A?"), assistant("B."), user("C?")]
    merged = [user("One.\n\nTwo.\n\nA?"), *chat[1:]]
    render = wrapped[name].render_chat
    assert render([system("One."), system("Two.", "developer"), *chat]) == render(merged)
    parts = [[{"type": "text", "text": text}] for text in ("One.", "A?")]
    instructed = [system(parts[0]), user(parts[1])]
    [message] = wrapped[name].template(FAMILIES[name]).messages(instructed, {})
    assert message["content"] == [*parts[0], {"type": "text", "text": "\n\n"}, *parts[1]]
    assert render([system(""), *chat]) == render(chat)
    assert render([system("One.")]) == render([user("One.")])
    late = [*chat[:2], system("One."), chat[2]]
    assert render(late) == render([*chat[:2], user("One.\n\nC?")])


def test_instructions_that_an_option_shows(wrapped):
    template = """{% for m in messages if m.role != 'system' or show %}
    {{- m.role }}: {{ m.content }};{% endfor %}"""
    chat, options = [system("One."), user("A?")], {"chat_template": template}
    render = wrapped["ChatML"].render_chat
    assert render(chat, **options, show=True) == "system: One.;user: A?;"
    assert render(chat, **options) == "user: One.\n\nA?;"
    [first, _] = wrapped["ChatML"].template(template).messages(chat, {"show": True})
    assert first == chat[0]


def test_developers_are_the_system_unless_the_template_knows_them(tokenizer):
    chat = [system("One.", "developer"), user("A?")]
    assert tokenizer.render_chat(chat) == tokenizer.render_chat([system("One."), user("A?")])
    knows = "{% for m in messages %}{{ '!' if m.role == 'developer' }}{{ m.content }}{% endfor %}"
    assert tokenizer.render_chat(chat, chat_template=knows) == "!One.A?"


@pytest.mark.parametrize("name", ALTERNATING)
def test_what_is_wrong_stays_refused(wrapped, name):
    for chat in ([user("A?"), user("B?")], [assistant("A."), user("B?")]):
        message = report(wrapped[name].render_chat, chat)
        assert message.endswith("refuses the messages: roles must alternate")


THOUGHTS = [
    assistant("<think>\nHm.\n</think>\n\nSo."),
    assistant("So.", reasoning_content="Hm."),
    assistant("So.", reasoning="Hm."),
    assistant("\n<think>Hm.</think>So.", reasoning_content="Hm."),
]


@pytest.mark.parametrize("name", ["SmolLM3", "Qwen3", "DeepSeek-V3", "LFM2.5"])
def test_history_without_thoughts(wrapped, name):
    """Of models that think: as if they had not, or as the template has it."""
    render = wrapped[name].render_chat
    plain, ask = assistant("So."), user("How?")
    for thought in THOUGHTS:
        assert render([ask, thought, ask]) == render([ask, plain, ask])
    # An answer may speak of the marks.
    assert "<think> begins" in render([ask, assistant("<think> begins thoughts."), ask])
    marks = "With <think> and </think>."
    if name == "SmolLM3":
        assert marks in render([ask, assistant(marks), ask])


@pytest.mark.parametrize(
    ("name", "field", "shown"),
    [
        ("Qwen3", "reasoning_content", "<think>\nHm.\n</think>\n\nSo."),
        ("LFM2.5", "thinking", "<think>Hm.</think>So."),
    ],
)
def test_thoughts_for_a_template_that_reads_them(wrapped, name, field, shown):
    """As transformers writes them, between calls: in the template's field, or in the content."""
    function = {"name": "look", "arguments": {}}
    calls = [{"id": "123456789", "type": "function", "function": function}]
    results = [{"role": "tool", "tool_call_id": "123456789", "content": "20"}]
    for thought in THOUGHTS:
        chat = [user("How?"), thought | {"tool_calls": calls}, *results]
        theirs = [chat[0], assistant("So.", tool_calls=calls, **{field: "Hm."}), *results]
        expected = wrapped[name].wrapped.apply_chat_template(
            theirs, tokenize=False, add_generation_prompt=True
        )
        assert shown in expected
        assert wrapped[name].render_chat(chat) == expected


def test_thoughts_that_are_text(wrapped):
    """Where no one thinks, and where an answer is continued."""
    text = wrapped["ChatML"].render_chat([user("How?"), THOUGHTS[0], user("Why?")])
    assert THOUGHTS[0]["content"] in text
    chat = [user("How?"), assistant("<think>Hm")]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert wrapped["SmolLM3"].render_chat(chat, **options).endswith("<think>Hm")
