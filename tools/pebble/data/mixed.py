"""Conversations that change the subject: what a visitor does. Sometimes with a system text, tools or facts told early."""
from data import arithmetic, chat, json_task, lists, model, recall, scruff, system, tools, user


def turn(rng, with_tools=False):
    """(question, answer, thought) of any kind that needs no set-up."""
    kind = rng.weighted([("chat", 5), ("sum", 3), ("list", 3), ("json", 2), ("names", 1)])
    if kind == "chat":
        ask, answer, thought = chat.exchange(rng, with_tools)
        return scruff(rng, ask), answer, thought
    if kind == "list":
        return lists.one(rng)
    if kind == "json":
        return (*json_task.one(rng), "The user wants JSON. I pick the values.")
    if kind == "names":
        return (*recall.remembered_names(rng), "I look at who has it.")
    ask, answer = arithmetic.one(rng)
    return scruff(rng, ask), answer, answer


def make(rng, held_out=False):
    kit = tools.kit_of(rng, 3) if rng.chance(25) else []
    messages = [system(rng.pick(chat.SYSTEMS))] if rng.chance(30) else []
    notes = recall.rows_of(rng, rng.between(1, 3)) if rng.chance(35) else []
    for say, _ in notes:
        messages += [user(say), model(rng.pick(recall.NOTED))]
    for at in range(rng.between(1, 4)):
        if kit and rng.chance(40):
            messages += tools.round_trip(rng, rng.pick(kit), at)
        else:
            ask, answer, _ = turn(rng, bool(kit))
            messages += [user(ask), model(answer)]
    for say, ask in notes:
        messages += [user(ask), model(say)]
    talk = {"task": "mixed", "messages": messages, "check": {"kind": "exact"}}
    if kit:
        talk["tools"] = [declaration for declaration, _ in kit]
    return talk


def make_thinking(rng, held_out=False):
    """Earlier turns as the template shows them, without thoughts; the last one thinks."""
    messages = [system(rng.pick(chat.SYSTEMS))] if rng.chance(30) else []
    for _ in range(rng.between(0, 2)):
        ask, answer, _ = turn(rng)
        messages += [user(ask), model(answer)]
    ask, answer, thought = turn(rng)
    messages += [user(ask), model(answer, thought)]
    return {"task": "thinking", "messages": messages, "thinking": True, "check": {"kind": "exact"}}
