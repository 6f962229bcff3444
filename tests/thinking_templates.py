"""Chat templates that treat thoughts as published ones do."""

import copy
from typing import Any

from vagen.models.tiny import CHAT_TEMPLATE

CONTENT = "{{ message['content'] }}"
HEADER = "<|im_start|>assistant\n"
REST = "message['content'].split('</think>')[-1]"


def template(opening: str = "<think>\n", earlier: str = "message['content']") -> str:
    """The tiny model's template with an opening, and with answers written by an expression."""
    shown = f"{{{{ {earlier} if message['role'] == 'assistant' else message['content'] }}}}"
    found = CHAT_TEMPLATE.replace(CONTENT, shown).replace(
        f"{HEADER}{{% endif -%}}", f"{{{{ {HEADER + opening!r} }}}}{{% endif -%}}"
    )
    assert found.count(earlier) and opening.strip() in found
    return found


QWEN3 = """\
{%- set ns = namespace(last_query_index=-1) %}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.last_query_index = loop.index0 %}{%- endif %}
{%- endfor %}
""" + template("").replace(
    "{{ message['content'] if message['role'] == 'assistant' else message['content'] }}",
    """\
{%- set content = message['content'] %}
{%- set thought = '' %}
{%- if message['role'] == 'assistant' and '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if message['role'] == 'assistant' and loop.index0 > ns.last_query_index %}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
{%- else %}
{{- content }}
{%- endif %}
""",
)
"""Qwen3: the model opens the thought; earlier ones are taken out, line breaks stripped."""
QWEN3_THINKING = QWEN3.replace(repr(HEADER), repr(f"{HEADER}<think>\n"))
QWEN3_NO_THINKING = QWEN3.replace(repr(HEADER), repr(f"{HEADER}<think>\n\n</think>\n\n"))
TEMPLATES = {
    "qwen3": QWEN3,
    "qwen3-thinking": QWEN3_THINKING,
    "qwen3-no-thinking": QWEN3_NO_THINKING,
    "qwq": template(earlier=f"{REST}.lstrip('\\n')"),
    "r1": template(earlier=REST),
    "trimmed": template(earlier=f"{REST}.lstrip()"),
    "emptied": template(
        earlier=f"('<think>\\n\\n</think>\\n\\n' + {REST}.lstrip('\\n') "
        "if '</think>' in message['content'] else message['content'])"
    ),
    "kept": template(),
}
DROPS = [name for name in TEMPLATES if name != "kept"]


def with_template(processor: Any, text: str) -> Any:
    """The processor with another chat template."""
    other = copy.copy(processor)
    other.tokenizer = copy.deepcopy(processor.tokenizer)
    other.tokenizer.chat_template = text
    return other
