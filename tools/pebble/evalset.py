"""The held-out evaluation set, one JSON object a line, and how an answer is judged.

    python3 evalset.py OUT.jsonl

Fields: id, task, bin (recall only), messages, tools, enable_thinking (as a chat request would give them), reference (the
wanted message: content, and tool_calls where a call is wanted), stop (106 after an answer, 50 after calls), check:
  exact      content equals the reference's          json       content parses to the same JSON value
  one_of     content is one of check.answers         tool_call  same calls, same arguments
  min_words  content has at least check.words words  no_call    some content and no call
With enable_thinking there must be a closed, non-empty thought; without it none.
"""
import json
import sys

from data import arithmetic, chat, json_task, lists, recall, tools
from render import segments
from rng import Rng

RECALL = [(2, 0), (4, 0), (8, 0), (14, 0), (30, 0), (60, 0), (100, 0), (150, 0), (190, 0), (2, 300), (6, 800), (3, 1500)]
THINKING = [arithmetic.make_thinking, arithmetic.make_thinking, tools.make_thinking, chat.make_thinking,
            lists.make_thinking, recall.make_thinking, json_task.make_thinking]


def _tool_stage(rng, talk, stage):
    """Stage 0 asks for the call, stage 1 for the answer after the result."""
    calls = [i for i, message in enumerate(talk["messages"]) if message.get("tool_calls")]
    if stage == 0 and calls:
        talk = {**talk, "messages": talk["messages"][:calls[0] + 1], "check": {"kind": "tool_call"}}
    return talk


def conversations():
    """(key, conversation) of the whole set."""
    for task, make, count in (("chat", chat.make, 90), ("arithmetic", arithmetic.make, 60), ("lists", lists.make, 70),
                              ("json", json_task.make, 50)):
        for i in range(count):
            yield f"{task}-{i}", make(Rng("eval", task, i), held_out=True)
    for i in range(108):
        facts, filler = RECALL[i % len(RECALL)]
        yield f"recall-{i}", recall.make_sized(Rng("eval", "recall", i), facts, filler)
    for i in range(72):
        rng = Rng("eval", "tools", i)
        yield f"tools-{i}", _tool_stage(rng, tools.make_train(rng, held_out=True), i % 2)
    for i in range(50):
        rng = Rng("eval", "thinking", i)
        talk = THINKING[i % len(THINKING)](rng, held_out=True)
        for message in talk["messages"]:
            message.pop("quiet", None)
        yield f"thinking-{i}", _tool_stage(rng, talk, i // len(THINKING) % 2)


def item(key, talk, encoder):
    messages, last = talk["messages"][:-1], talk["messages"][-1]
    line = {"id": key, "task": talk["task"], "messages": messages}
    if talk.get("tools"):
        line["tools"] = talk["tools"]
    line["enable_thinking"] = bool(talk.get("thinking"))
    line["reference"] = {name: last[name] for name in ("content", "reasoning", "tool_calls") if last.get(name)}
    line["stop"] = 50 if last.get("tool_calls") else 106
    line["check"] = talk["check"]
    if talk["task"] == "recall":
        length = sum(len(encoder.encode(text)) for text, _ in segments(talk))
        line["bin"] = "<200" if length < 200 else "200-800" if length < 800 else "800-2000" if length < 2000 else ">2000"
    return line


def parse(text):
    """Generated text with the control tokens visible -> {thought, content, calls, stop}."""
    out = {"thought": None, "content": "", "calls": [], "stop": None, "broken": False}
    for token, number in (("<turn|>", 106), ("<|tool_response>", 50), ("<eos>", 1)):
        if text.endswith(token):
            out["stop"], text = number, text[:-len(token)]
            break
    if text.startswith("<|channel>"):
        thought, closed, text = text[len("<|channel>"):].partition("<channel|>")
        out["thought"], out["broken"] = thought.removeprefix("thought\n").strip(), not closed
    while "<|tool_call>" in text:
        before, _, rest = text.partition("<|tool_call>")
        inner, closed, rest = rest.partition("<tool_call|>")
        out["calls"].append(inner)
        out["broken"] |= not closed
        text = before + rest
    out["content"] = text.strip()
    out["broken"] |= "<|" in out["content"] or "|>" in out["content"]
    return out


def wanted_calls(reference):
    from render import _members
    return [f"call:{c['function']['name']}{{{_members(c['function']['arguments'])}}}" for c in reference.get("tool_calls", [])]


def judge(line, text):
    """True when the generated text (control tokens visible, what the prompt opened included) is right."""
    got, check, reference = parse(text), line["check"], line["reference"]
    if got["broken"] or got["stop"] != line["stop"] or bool(got["thought"]) != line["enable_thinking"]:
        return False
    kind, content = check["kind"], got["content"]
    if kind == "tool_call":
        return got["calls"] == wanted_calls(reference)
    if got["calls"]:
        return False
    if kind == "json":
        try:
            return json.loads(content) == json.loads(reference["content"])
        except ValueError:
            return False
    if kind == "one_of":
        return content in check["answers"]
    if kind == "min_words":
        return len(content.split()) >= check["words"]
    if kind == "no_call":
        return bool(content)
    return content == reference["content"].strip()


def talk_of(line):
    """Back to a conversation for render.prompt."""
    return {"messages": line["messages"] + [{"role": "assistant", "content": ""}], "tools": line.get("tools"),
            "thinking": line["enable_thinking"]}


def load(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def main(path, tokenizer="tokenizer.json"):
    import os
    from tokenizer import Encoder
    encoder = Encoder(os.path.join(os.path.dirname(os.path.abspath(__file__)), tokenizer))
    with open(path, "w", encoding="utf-8") as file:
        for key, talk in conversations():
            file.write(json.dumps(item(key, talk, encoder), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
