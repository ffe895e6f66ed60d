"""One server for all tests of a worker that need no options of their own."""

import pytest
from chat_demo import write_chat_target
from serve_process import QUICK, server

from dart_jax.model import DEMO

# Refuses what it does not know, as many do, and has an option.
TEMPLATE = """{%- for message in messages -%}
{%- if message.role not in ('system', 'user', 'assistant') -%}
{{ raise_exception('there is no role ' + message.role) }}
{%- endif -%}
# {{ message.role }}: {{ message.content }}
{% endfor -%}
{%- if short is defined %}# short
{% endif -%}
{%- if add_generation_prompt %}def {% endif -%}"""


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    """The demo's target with a chat template."""
    return write_chat_target(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="session")
def served(target):
    """Its server, under two names; prompts are read in several parts."""
    parts = ("--target", str(target), "--drafter", str(DEMO / "drafter"))
    names = ("--served-model-name", "demo", "second")
    with server(*parts, *names, *QUICK, "--max-length", "1024", "--chunk", "16") as running:
        yield running


@pytest.fixture
def client(served):
    """OpenAI's client of it."""
    return served.client()
