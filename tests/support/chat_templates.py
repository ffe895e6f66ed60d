"""Chat templates with the structure and the checks of those of the supported families."""

from __future__ import annotations

from pathlib import Path

import transformers
from tokenizers_made import byte_level

from dart_jax.text.tokenizer import Tokenizer

_ALTERNATE = """{%- for message in chat -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
{%- endfor -%}"""
_FIRST_SYSTEM = """{%- set chat = messages -%}
{%- if messages[0].role == 'system' -%}
{%- set system, chat = messages[0].content, messages[1:] -%}
{%- endif -%}"""

CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


# Results in turns of the user; arguments as objects, or as texts.
_QWEN_TURNS = """{%- elif message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}"""
_QWEN_CALLS = """{%- for call in message.tool_calls or [] -%}
{%- set call = call.function or call -%}
{{ '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}
{{- '}\n</tool_call>' -}}
{%- endfor -%}{{ '<|im_end|>\n' }}"""
_QWEN_TOOLS = """{%- if tools -%}
{{ '<|im_start|>system\n' }}
{{- messages[0].content + '\n\n' if messages[0].role == 'system' else '' }}{{ '<tools>' }}
{%- for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}{{ '\n</tools>' }}
{{- '\n<tool_call>{...}</tool_call><|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif -%}"""

QWEN25 = (
    _QWEN_TOOLS
    + """{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first)
   or (message.role == 'assistant' and not message.tool_calls) -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' -%}
{{ '<|im_start|>assistant' + ('\n' + message.content if message.content else '') }}"""
    + _QWEN_CALLS
    + _QWEN_TURNS
)

# Thoughts are shown after the user's last question.
QWEN3 = (
    _QWEN_TOOLS
    + """{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' -%}
{%- set content, thoughts = message.content or '', '' -%}
{%- if message.reasoning_content is string -%}
{%- set thoughts = message.reasoning_content -%}
{%- elif '</think>' in content -%}
{%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{ '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and (loop.last or thoughts) -%}
{{ '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' }}
{%- endif -%}
{{ content.lstrip('\n') }}"""
    + _QWEN_CALLS
    + _QWEN_TURNS
)

# Calls with a pair of marks around each argument.
QWEN3_CODER = (
    """{%- if tools -%}{{ '<|im_start|>system\n' + tools | tojson }}
{{- '<tool_call><function=f><parameter=p></parameter></function><|im_end|>\n' }}{%- endif -%}
{%- for message in messages -%}
{%- if message.role in ('user', 'system') -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' -%}
{{ '<|im_start|>assistant' }}
{%- if message.content is string and message.content | trim -%}
{{ '\n' + message.content | trim }}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for name, value in call.function.arguments | items -%}
{{ '<parameter=' + name + '>\n' + (value if value is string else value | tojson) }}
{{- '\n</parameter>\n' -}}
{%- endfor -%}{{ '</function>\n</tool_call>' }}
{%- endfor -%}{{ '<|im_end|>\n' }}"""
    + _QWEN_TURNS
)

GLM45 = """[gMASK]<sop>
{%- if tools %}<|system|>{{ tools | tojson }}<tool_call>f<arg_key>..</arg_key>{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ '<|assistant|>\n<think></think>' }}{{ '\n' + message.content if message.content else '' }}
{%- for call in message.tool_calls or [] -%}
{{ '\n<tool_call>' + call.function.name }}
{%- for name, value in call.function.arguments.items() -%}
{{ '\n<arg_key>' + name + '</arg_key>\n<arg_value>' }}
{{- value if value is string else value | tojson }}{{ '</arg_value>' }}
{%- endfor -%}{{ '\n</tool_call>' }}
{%- endfor -%}
{%- elif message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif -%}
{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- else -%}
{{ '<|' + message.role + '|>\n' + message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif -%}"""

# Calls are nothing but text, and only the first system message is read.
SMOLLM3 = (
    _FIRST_SYSTEM
    + """{{ '<|im_start|>system\n' + (system or '') + (tools | tojson if tools else '') }}
{{- '<tool_call>' if tools else '' }}{{ '<|im_end|>\n' }}
{%- for message in chat -%}
{%- set content = message.content if message.content is string else '' -%}
{%- if message.role == 'assistant' -%}
{{ '<|im_start|>assistant\n' + '<think>\n\n</think>\n' + content.lstrip('\n') + '<|im_end|>\n' }}
{%- elif message.role in ('user', 'tool') -%}
{{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n' }}{% endif -%}"""
)

LLAMA31 = (
    """{%- set begin = '<|start_header_id|>' -%}{%- set end = '<|end_header_id|>\n\n' -%}"""
    + _FIRST_SYSTEM
    + """{{ begin + 'system' + end + (system or '') | trim + '<|eot_id|>' }}
{%- if tools -%}
{%- if not chat -%}{{ raise_exception('there is no first message of the user') }}{%- endif -%}
{{ begin + 'user' + end + tools | tojson + '\n' + chat[0].content | trim + '<|eot_id|>' }}
{%- set chat = chat[1:] -%}
{%- endif -%}
{%- for message in chat -%}
{%- if not (message.role in ('ipython', 'tool') or 'tool_calls' in message) -%}
{{ begin + message.role + end + message.content | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message -%}
{%- if message.tool_calls | length != 1 -%}
{{ raise_exception('one call at a time') }}
{%- endif -%}
{%- set call = message.tool_calls[0].function -%}
{{ begin + 'assistant' + end + '{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson + '}' + ('<|python_tag|>' if builtin_tools else '') + '<|eot_id|>' -}}
{%- else -%}
{{ begin + 'ipython' + end }}
{{- message.content | tojson if message.content is iterable else message.content }}
{{- '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ begin + 'assistant' + end }}{% endif -%}"""
)

# It knows no built-in tools, and not their mark.
LLAMA32 = LLAMA31.replace(" + ('<|python_tag|>' if builtin_tools else '')", "").replace(
    "tools | tojson",
    """'{"name": ..., "parameters": dictionary of argument name and value}' + tools | tojson""",
)

_MISTRAL_CHECK = """{%- set ns = namespace(index=0) -%}
{%- for message in chat -%}
{%- if not (message.role == 'tool' or (message.tool_calls is defined
   and message.tool_calls is not none)) -%}
{%- if (message.role == 'user') != (ns.index % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
{%- set ns.index = ns.index + 1 -%}
{%- endif -%}
{%- endfor -%}"""
_MISTRAL_TURNS = """{%- elif message.tool_calls is defined and message.tool_calls is not none -%}
{{ '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls -%}
{%- if call.id is not defined or call.id | length != 9 -%}
{{ raise_exception('ids have nine characters') }}
{%- endif -%}
{{ (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (', ' if not loop.last else '') }}
{%- endfor -%}
{{ ']' + eos_token }}
{%- elif message.role == 'assistant' -%}
{{ ' ' + message.content | trim + eos_token }}
{%- elif message.role == 'tool' -%}
{%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 -%}
{{ raise_exception('ids have nine characters') }}
{%- endif -%}
{{ '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' -}}
{%- else -%}
{{ raise_exception('there are users and assistants') }}
{%- endif -%}
{%- endfor -%}"""

MISTRAL7 = (
    _FIRST_SYSTEM
    + _MISTRAL_CHECK
    + """{{ bos_token + '[SYSTEM_PROMPT]' + (system or 'Be good.') + '[/SYSTEM_PROMPT]' }}
{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' if tools else '' }}
{%- for message in chat -%}
{%- if message.role == 'user' -%}{{ '[INST]' + message.content + '[/INST]' }}"""
    + _MISTRAL_TURNS
)

GEMMA2 = (
    """{{ bos_token }}{%- if messages[0].role == 'system' -%}
{{ raise_exception('there is no system role') }}
{%- endif -%}{%- set chat = messages -%}"""
    + _ALTERNATE
    + """{%- for message in chat -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) }}
{{- '\n' + message.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif -%}"""
)

# The first version leaves out system messages.
PHI3 = """{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}
{{- '<|user|>\n' + message.content + '<|end|>\n<|assistant|>\n' }}
{%- elif message.role == 'assistant' %}{{ message.content + '<|end|>\n' }}{% endif %}{% endfor %}"""


PHI4_MINI = (
    _FIRST_SYSTEM
    + """{%- if system or tools -%}
{{ '<|system|>' + (system or '') + ('<|tool|>' + tools | tojson + '<|/tool|>' if tools else '') }}
{{- '<|tool_call|>' if tools else '' }}{{ '<|end|>' }}
{%- endif -%}
{%- for message in chat -%}
{%- if message.role == 'tool' -%}
{{ '<|tool_response|>' + message.content | tojson + '<|end|>' }}
{%- else -%}
{{ '<|' + message.role + '|>' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '<|tool_call|>' + call.function | tojson + '<|/tool_call|>' }}
{%- endfor -%}{{ '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif -%}"""
)


# All system messages are at the beginning; the first call of a chat has marks of its own;
# arguments are texts.
DEEPSEEK_V3 = """{%- set ns = namespace(begun=false, tool=false) -%}
{{ bos_token + messages | selectattr('role', 'equalto', 'system') | map(attribute='content')
   | join('\n\n') }}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- set ns.tool = false -%}{{ '<|User|>' + message.content }}
{%- elif message.role == 'assistant' and 'tool_calls' in message -%}
{%- set ns.tool = false -%}
{%- for call in message.tool_calls -%}
{{ '\n' if ns.begun else '<|Assistant|>' + (message.content or '') + '<|calls_begin|>' }}
{{- '<|call|>' + call.type + '<|sep|>' + call.function.name + '\n```json\n' }}
{{- call.function.arguments + '\n```<|call_end|>' -}}
{%- set ns.begun = true -%}
{%- endfor -%}{{ '<|calls_end|>' + eos_token }}
{%- elif message.role == 'assistant' -%}
{{ ('<|outputs_end|>' if ns.tool else '<|Assistant|>') }}
{{- (message.content if ns.tool else message.content.split('</think>')[-1]) + eos_token -}}
{%- set ns.tool = false -%}
{%- elif message.role == 'tool' -%}
{%- set ns.tool = true -%}{{ '<|output|>' + message.content + '<|output_end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.tool %}{{ '<|Assistant|><think>\n' }}{% endif -%}"""

# Thoughts are in `thinking`, and calls are those of Python.
LFM25 = (
    _FIRST_SYSTEM
    + """{%- set about = 'List of tools: ' + tools | tojson if tools else '' -%}
{%- if system or about -%}
{{ '<|im_start|>system\n' + (system or '') + about + '<|im_end|>\n' }}
{%- endif -%}
{%- set ns = namespace(last=-1) -%}
{%- for message in chat -%}
{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in chat -%}
{%- set content = message.content or '' -%}
{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' -%}
{%- if loop.index0 <= ns.last -%}
{%- set content = content.split('</think>')[-1] | trim if '</think>' in content else content -%}
{%- elif message.thinking is defined -%}
{{ '<think>' + message.thinking + '</think>' }}
{%- endif -%}
{%- endif -%}
{{ content }}
{%- if message.tool_calls is defined -%}
{{ '<|tool_call_start|>[' }}
{%- for call in message.tool_calls -%}
{{ call.function.name + '(' }}
{%- for name, value in call.function.arguments.items() -%}
{{ name + '=' + value | tojson + (', ' if not loop.last else '') }}
{%- endfor -%}{{ ')' + (', ' if not loop.last else '') }}
{%- endfor -%}{{ ']<|tool_call_end|>' }}
{%- endif -%}
{{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}"""
)

# It knows developers, and only at the beginning.
GPT_OSS = """{%- set chat = messages -%}
{%- if messages[0].role in ('system', 'developer') -%}
{{ '<|start|>developer<|message|>' + messages[0].content + '<|end|>' }}
{%- set chat = messages[1:] -%}
{%- endif -%}
{%- for message in chat -%}
{%- if message.role == 'user' %}{{ '<|start|>user<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'assistant' -%}
{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif -%}"""

# Processors of vision-language models read nothing but parts.
PARTS = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content if part is mapping %}{{ part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

FAMILIES = {
    "ChatML": CHATML,
    "SmolLM3": SMOLLM3,
    "Qwen2.5": QWEN25,
    "Qwen3": QWEN3,
    "Qwen3-Coder": QWEN3_CODER,
    "Llama 3.1": LLAMA31,
    "Llama 3.2": LLAMA32,
    "Mistral v7": MISTRAL7,
    "Gemma 2": GEMMA2,
    "Phi-3": PHI3,
    "Phi-4-mini": PHI4_MINI,
    "GLM-4.5": GLM45,
    "DeepSeek-V3": DEEPSEEK_V3,
    "LFM2.5": LFM25,
    "gpt-oss": GPT_OSS,
    "parts": PARTS,
}


def write_families(directory: Path) -> dict[str, Tokenizer]:
    """Writes a tokenizer of each family; returns them by name."""
    made = {}
    for name, template in FAMILIES.items():
        wrapped = transformers.PreTrainedTokenizerFast(
            tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>"
        )
        wrapped.chat_template = template
        wrapped.save_pretrained(directory / name)
        made[name] = Tokenizer.load(directory / name)
    return made
