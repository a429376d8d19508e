"""Facts stated earlier in the prompt, asked for later: from one turn back to thousands of tokens back.

The answer restates the fact, so that key and value stand together as they did in the prompt.
"""
from data import facts as valley
from data import model, smalltalk, stories, system, user
from words import CITIES, COLORS, FOODS, ITEMS, NAMES, ROOMS, joined, made_up
from world import PET_NAMES

# kind: (statement = answer, questions, key). Values are drawn per fact.
KINDS = {
    "room": ("The {color} {item} is in the {room}.", ["Where is the {color} {item}?", "In which room is the {color} {item}?"]),
    "number": ("{name}'s {item} has the number {number}.",
               ["What number does {name}'s {item} have?", "What is the number of {name}'s {item}?"]),
    "code": ("The code of {name} is {number}.", ["What is the code of {name}?", "What code does {name} have?"]),
    "food": ("{word} likes {food}.", ["What does {word} like?", "Which food does {word} like?"]),
    "password": ("The password of the {color} {room2} is {word2}.",
                 ["What is the password of the {color} {room2}?", "Which password does the {color} {room2} have?"]),
}
ABOUT_ME = {  # what people say of themselves: (statement, question, answer)
    "name": ("My name is {}.", ["What is my name?", "Who am I?", "Do you know my name?"], "Your name is {}."),
    "home": ("I live in {}.", ["Where do I live?", "Do you know where I live?"], "You live in {}."),
    "food": ("I like {}.", ["What do I like?", "What food do I like?"], "You like {}."),
    "age": ("I am {} years old.", ["How old am I?", "What is my age?"], "You are {} years old."),
    "color": ("My favourite colour is {}.", ["What is my favourite colour?", "Which colour do I like?"],
              "Your favourite colour is {}."),
    "pet": ("My dog is called {}.", ["What is my dog called?", "What is the name of my dog?"], "Your dog is called {}."),
}
LEADS = ["Here are some facts.", "Please remember these facts.", "Read this carefully.", "These are my notes.",
         "Remember the following.", "Facts:"]
NOTED = ["I will remember that.", "Noted.", "Good to know."]
LIMIT = {"room": 400, "number": 900, "code": len(NAMES), "food": 400, "password": 100}


def _draw(rng, kind):
    """One fact: (key, statement, question)."""
    slots = {}
    if kind == "room":
        slots = {"color": rng.pick(COLORS), "item": rng.pick(ITEMS), "room": rng.pick(ROOMS)}
        key = (slots["color"], slots["item"])
    elif kind == "number":
        slots = {"name": rng.pick(NAMES), "item": rng.pick(ITEMS), "number": rng.between(10, 9999)}
        key = (slots["name"], slots["item"])
    elif kind == "code":
        slots = {"name": rng.pick(NAMES), "number": rng.between(100, 9999)}
        key = slots["name"]
    elif kind == "food":
        slots = {"word": made_up(rng, 3), "food": rng.pick(FOODS)}
        key = slots["word"]
    else:
        slots = {"color": rng.pick(COLORS), "room2": rng.pick(ROOMS), "word2": made_up(rng, 3)}
        key = (slots["color"], slots["room2"])
    say, asks = KINDS[kind]
    return (kind, key), say.format(**slots), rng.pick(asks).format(**slots)


def rows_of(rng, count):
    """`count` facts with different keys, of one to three kinds: [(statement, question)]."""
    kinds = rng.sample(list(KINDS), rng.between(1, 3))
    if sum(LIMIT[kind] for kind in kinds) < 2 * count:
        kinds.append("number")
    seen, rows = set(), []
    while len(rows) < count:
        key, say, ask = _draw(rng, rng.pick(kinds))
        if key not in seen:
            seen.add(key)
            rows.append((say, ask))
    return rows


def _filler(rng, words):
    """About that many words of story or valley facts."""
    parts, size = [], 0
    while size < words:
        text = stories.story(rng) if rng.chance(50) else " ".join(rng.pick(valley.KNOWN)[1] for _ in range(4))
        parts.append(text)
        size += len(text.split())
    return " ".join(parts)


def _questions(rng, rows, count):
    return [message for say, ask in rng.sample(rows, min(count, len(rows))) for message in (user(ask), model(say))]


def listed(rng, facts, questions, filler=0):
    """All facts in one message (or the system turn), some filler perhaps, then the questions."""
    rows = rows_of(rng, facts)
    lead = f"{rng.pick(LEADS)}{rng.pick([' ', chr(10)])}" if rng.chance(70) else ""
    text = lead + rng.pick([" ", "\n"]).join(say for say, _ in rows)
    turns = _questions(rng, rows, questions)
    if filler:
        story = _filler(rng, filler)
        text = f"{text}\n{story}" if rng.chance(50) else f"{story}\n{text}\n{_filler(rng, filler // 4)}"
    place = rng.below(3)
    if place == 0:
        return [system(text), *turns]
    if place == 1:
        return [user(text), model(rng.pick(NOTED)), *turns]
    turns[0] = user(f"{text}{rng.pick([chr(10), ' ', chr(10) * 2])}{turns[0]['content']}")
    return turns


def told(rng, facts, questions):
    """Facts told one by one in a conversation with other talk in between."""
    rows, messages = rows_of(rng, facts), []
    for say, _ in rows:
        messages += [user(rng.pick(["{}", "Remember: {}", "By the way, {}"]).format(say)), model(rng.pick(NOTED))]
        if rng.chance(30):
            ask, answer = rng.pick(valley.KNOWN) if rng.chance(70) else smalltalk.fixed(rng)
            messages += [user(ask), model(answer)]
    return messages + _questions(rng, rows, questions)


def _me(rng, key):
    values = {"name": NAMES + [made_up(rng, 2)], "home": CITIES, "food": FOODS, "color": COLORS, "pet": PET_NAMES}
    return rng.between(5, 90) if key == "age" else rng.pick(values[key])


def personal(rng):
    """Facts about the visitor, told at once or turn by turn."""
    keys = rng.sample(list(ABOUT_ME), rng.between(1, 4))
    values = {key: _me(rng, key) for key in keys}
    say = [ABOUT_ME[key][0].format(values[key]) for key in keys]
    turns = []
    for key in rng.sample(keys, rng.between(1, len(keys))):
        turns += [user(rng.pick(ABOUT_ME[key][1])), model(ABOUT_ME[key][2].format(values[key]))]
    style = rng.below(3)
    if style == 0:
        turns[0] = user(" ".join(say) + " " + turns[0]["content"])
        return turns
    if style == 1:
        return [user(" ".join(say)), model(rng.pick(NOTED)), *turns]
    return [message for text in say for message in (user(text), model(rng.pick(NOTED)))] + turns


def make(rng, held_out=False, level=1.0):
    """A short one: fits in a few hundred tokens."""
    if not held_out and rng.chance(15):
        return {"task": "recall", "messages": personal(rng), "check": {"kind": "exact"}}
    most = 2 + int(14 * level)
    count = rng.between(2, most)
    if not held_out and rng.chance(30):
        messages = told(rng, rng.between(2, min(5, most)), 2)
    else:
        messages = listed(rng, count, 1 if held_out else rng.between(2, 6))
    return {"task": "recall", "messages": messages, "check": {"kind": "exact"}, "quiet": True}


def make_long(rng, held_out=False, level=1.0):
    """A long one. level 0: about 200 tokens; level 1: up to about 3,500 tokens and 200 facts."""
    most = 8 + int(192 * level)
    count = 4
    while count < most and rng.chance(75 if level > 0.5 else 60):  # geometric, so every size is common
        count = count * 3 // 2
    count = min(count, most)
    room = int(2200 * level) - 9 * count
    filler = rng.below(room) if room > 40 and rng.chance(60) else 0
    questions = 1 if held_out else rng.between(8, 20)
    messages = listed(rng, count, questions, filler)
    return {"task": "recall", "messages": messages, "check": {"kind": "exact"}, "quiet": True}


def make_sized(rng, facts, filler):
    """Evaluation: so many facts, so many words of filler, one question."""
    return {"task": "recall", "messages": listed(rng, facts, 1, filler), "check": {"kind": "exact"}}


def make_thinking(rng, held_out=False):
    """With thinking on, the thought quotes the fact."""
    rows = rows_of(rng, rng.between(2, 8))
    say, ask = rng.pick(rows)
    text = (f"{rng.pick(LEADS)} " if rng.chance(60) else "") + " ".join(row[0] for row in rows)
    return {"task": "thinking", "messages": [user(f"{text}\n{ask}"), model(say, f"I look for it in the facts. {say}")],
            "thinking": True, "check": {"kind": "exact"}}


def remembered_names(rng):
    """A shopping-list kind of memory: who has what, asked as a list."""
    names = rng.sample(NAMES, rng.between(2, 4))
    item = rng.pick(ITEMS)
    text = " ".join(f"{name} has a {item if rng.chance(50) else rng.pick(FOODS)}." for name in names)
    owners = [name for name in names if f"{name} has a {item}." in text]
    ask = f"{text}\nWho has a {item}?"
    answer = f"Nobody has a {item}." if not owners else f"{joined(owners)} {'has' if len(owners) == 1 else 'have'} a {item}."
    return ask, answer
