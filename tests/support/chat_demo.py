"""The demo target with a chat template, which it does not have."""

from __future__ import annotations

import shutil
from pathlib import Path

from dart_jax.model import DEMO

# A short chat, after which the model writes a function.
TEMPLATE = """{%- for message in messages -%}
# {{ message.role }}: {{ message.content }}
{% endfor -%}
{%- if add_generation_prompt %}def {% endif -%}"""


def write_chat_target(directory: Path, template: str = TEMPLATE) -> Path:
    """Copies the demo target into `directory`, with a template; returns its path."""
    target = shutil.copytree(DEMO / "target", directory / "target")
    (target / "chat_template.jinja").write_text(template)
    return target
