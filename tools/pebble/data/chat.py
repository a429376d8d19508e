"""Short chat: the valley, small talk, stories, follow-up questions, and honest ignorance."""
from data import facts, model, scruff, smalltalk, stories, system, tools, user

SYSTEMS = ["You are a helpful assistant.", "You are Pebble, a small and friendly model.", "Be brief.",
           "You are a kind assistant. Answer in plain English.", "You are a helpful AI assistant. Answer the user's questions.",
           "Answer truthfully.", "You are Pebble.", "Always answer politely."]


def exchange(rng, with_tools=False):
    """(question, answer, thought) of one turn."""
    kind = rng.weighted([("facts", 8), ("lives", 1), ("hello", 2), ("fixed", 4), ("story", 2), ("unknown", 4), ("like", 1), ("tool", 1), ("two", 1), ("count", 1)])
    if kind == "facts":
        return (*rng.pick(facts.KNOWN), "I know this about Pebble Valley.")
    if kind == "lives":
        return (*facts.who_lives(rng), "I think of the people in that village.")
    if kind == "hello":
        return (*smalltalk.hello(rng), "The user greets me. I greet back.")
    if kind == "fixed":
        return (*smalltalk.fixed(rng), "This is small talk. I answer kindly.")
    if kind == "story":
        return (*stories.ask(rng), "The user wants something made up. I make it up.")
    if kind == "tool" and not with_tools:
        return (*tools.without(rng), "I would need a tool for this.")
    if kind == "count":
        return (*smalltalk.counting(rng), "I count.")
    if kind == "two":
        return (*facts.two(rng), "I know this about Pebble Valley.")
    if kind == "like":
        return (*smalltalk.compliment(rng), "This is small talk. I answer kindly.")
    ask, answer = smalltalk.unknown(rng)
    return ask, answer, "I do not know about this. I say so."


def make(rng, held_out=False):
    if held_out:
        return _evaluation(rng)
    messages = [system(rng.pick(SYSTEMS))] if rng.chance(20) else []
    for _ in range(rng.pick([1, 1, 1, 2, 2, 3, 4])):
        if rng.chance(12):
            first, answer, second, reply = facts.follow_up(rng)
            messages += [user(first), model(answer), user(second), model(reply)]
        else:
            ask, answer, _ = exchange(rng)
            messages += [user(scruff(rng, ask)), model(answer)]
    return {"task": "chat", "messages": messages, "check": {"kind": "exact"}}


def make_thinking(rng, held_out=False):
    messages = []
    for _ in range(rng.pick([0, 0, 1])):
        ask, answer, _ = exchange(rng)
        messages += [user(ask), model(answer)]
    if held_out:
        ask, answer = rng.pick(facts.HELD_OUT)
        thought = "I know this about Pebble Valley."
    else:
        ask, answer, thought = exchange(rng)
    messages += [user(ask), model(answer, thought)]
    return {"task": "thinking", "messages": messages, "thinking": True, "check": {"kind": "exact"}}


def _evaluation(rng):
    kind = rng.weighted([("fact", 6), ("fixed", 2), ("follow", 2), ("unknown", 1), ("story", 1)])
    if kind == "fact":
        ask, answer = rng.pick(facts.HELD_OUT)
        return {"task": "chat", "messages": [user(ask), model(answer)], "check": {"kind": "exact"}}
    if kind == "follow":
        first, answer, second, reply = facts.follow_up(rng)
        return {"task": "chat", "messages": [user(first), model(answer), user(second), model(reply)],
                "check": {"kind": "exact"}}
    if kind == "unknown":
        ask, answer = smalltalk.unknown(rng)
        return {"task": "chat", "messages": [user(ask), model(answer)], "check": {"kind": "exact"}}
    if kind == "story":
        ask, answer = rng.pick(stories.ASKS), ""
        return {"task": "chat", "messages": [user(ask), model(answer)], "check": {"kind": "min_words", "words": 30}}
    asks, answers = rng.pick(smalltalk.FIXED)
    return {"task": "chat", "messages": [user(rng.pick(asks)), model(answers[0])],
            "check": {"kind": "one_of", "answers": answers}}
