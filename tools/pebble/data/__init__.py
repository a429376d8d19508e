"""The tasks. Each module has `make(rng, held_out)` and gives a conversation:

{"task": name, "messages": [...], "tools": [...] (optional), "thinking": True (optional),
 "check": {"kind": ...}, "train_all": False (optional)}

Messages are OpenAI-style (role, content, reasoning, tool_calls). The last message is the model's, and is what an
evaluation asks for; `check` says how its answer is judged. Where `held_out` is true the item comes from a part of the
task's space that training never sees (where the space is small enough for that to matter).
"""


def user(text):
    return {"role": "user", "content": text}


def model(text, reasoning=None):
    message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning"] = reasoning
    return message


def system(text):
    return {"role": "system", "content": text}


def scruff(rng, text):
    """How people type: now and then no capitals, no full stop or question mark at the end."""
    if text.startswith(("What is ", "Who is ", "Where is ")) and rng.chance(12):
        text = text.replace(" is ", rng.pick(["'s ", "s "]), 1)
    style = rng.below(8)
    if style == 0:
        return text.lower()
    if style == 1:
        return text.lower().rstrip("?.!")
    if style == 2:
        return text.rstrip("?.!")
    return text
