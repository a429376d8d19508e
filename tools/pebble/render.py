"""Conversation -> the text Google's Gemma 4 template gives (resources/chat_templates/gemma4_e.jinja), cut into
(text, weight) segments: weight 1 where the model speaks, `prompt_weight` elsewhere. test_pebble.py compares it with
the template itself. Only what the generators use is covered: string contents, flat schemas.
"""

QUOTE = '<|"|>'


def _value(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return QUOTE + value + QUOTE
    if isinstance(value, dict):
        return "{" + _members(value) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_value(item) for item in value) + "]"
    return str(value)


def _members(mapping):
    return ",".join(f"{key}:{_value(mapping[key])}" for key in sorted(mapping, key=str.lower))


def _declaration(tool):
    function = tool["function"]
    properties = function["parameters"]["properties"]
    parts = []
    for key in sorted(properties, key=str.lower):
        schema = properties[key]
        inner = []
        if schema.get("description"):
            inner.append(f"description:{QUOTE}{schema['description']}{QUOTE}")
        if schema.get("enum"):
            inner.append(f"enum:{_value(schema['enum'])}")
        inner.append(f"type:{QUOTE}{schema['type'].upper()}{QUOTE}")
        parts.append(f"{key}:{{{','.join(inner)}}}")
    required = function["parameters"].get("required")
    need = "required:[" + ",".join(f"{QUOTE}{key}{QUOTE}" for key in required) + "]," if required else ""
    return (f"<|tool>declaration:{function['name']}{{description:{QUOTE}{function['description']}{QUOTE},parameters:{{"
            f"properties:{{{','.join(parts)}}},{need}type:{QUOTE}OBJECT{QUOTE}}}}}<tool|>")


def _result(message):
    content = message["content"]
    body = _members(content) if isinstance(content, dict) else f"value:{_value(content)}"
    return f"response:{message['name']}{{{body}}}<tool_response|>"


EMPTY = "<|channel>thought\n<channel|>"


def segments(conversation, prompt_weight=0.0, empty=""):
    """[(text, weight)]; joined they are the rendered conversation with no generation prompt.

    empty (the large models' template, thinking off): the generation prompt holds an empty thought, the history does not.
    "last" writes it at the last turn alone and trains that turn alone; "all" at every turn, trained as if each was the last.
    """
    messages, thinking = conversation["messages"], conversation.get("thinking", False)
    tools, low = conversation.get("tools"), prompt_weight
    head = "<bos>"
    if thinking or tools or messages[0]["role"] == "system":
        head += "<|turn>system\n" + ("<|think|>\n" if thinking else "")
        if messages[0]["role"] == "system":
            head += messages[0]["content"].strip()
            messages = messages[1:]
        head += "".join(_declaration(tool) for tool in tools or []) + "<turn|>\n"
    out = [(head, low)]
    last_user = max(i for i, message in enumerate(messages) if message["role"] == "user")
    before, in_call = None, False  # role of the message before, tool messages aside; a call just ended
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            out.append((f"<|turn>user\n{message['content'].strip()}<turn|>\n", low))
        elif role == "tool":
            lead = "" if in_call else "<|tool_response>"
            out.append((lead + _result(message), 0.0))
            in_call = False
            continue
        else:
            # A turn whose thought the template leaves out is not what the model should write: no loss there.
            mute = message.get("quiet") or (i < last_user and (thinking or empty == "last"))
            weight = low if mute else 1.0
            if before != "assistant":
                blank = not thinking and (empty == "all" or empty == "last" and i > last_user)
                out.append(("<|turn>model\n" + (EMPTY if blank else ""), low))
            if message.get("reasoning") and i > last_user:
                if before == "assistant":  # after a tool's answer the prompt already opens the thought
                    out.append(("<|channel>thought\n", 0.0))
                    out.append((f"{message['reasoning']}\n<channel|>", weight))
                else:
                    out.append((f"<|channel>thought\n{message['reasoning']}\n<channel|>", weight))
            if message.get("tool_calls"):
                calls = "".join(f"<|tool_call>call:{c['function']['name']}{{{_members(c['function']['arguments'])}}}"
                                "<tool_call|>" for c in message["tool_calls"])
                out.append((calls + "<|tool_response>", weight))
                in_call = True
            else:
                out.append((message["content"].strip() + "<turn|>", weight))
                out.append(("\n", 0.0))
        before = role
    return out


def prompt(conversation, large=False):
    """The text up to where the last message has to be written: an evaluation's prompt."""
    messages = conversation["messages"]
    text = "".join(text for text, _ in segments({**conversation, "messages": messages[:-1]}))
    if messages[-2]["role"] != "tool":
        return text + "<|turn>model\n" + (EMPTY if large and not conversation.get("thinking") else "")
    return text + ("<|channel>thought\n" if conversation.get("thinking") else "")
