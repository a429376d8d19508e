"""JSON on request: fields out of a sentence, lists into arrays, keys the user names."""
import json

from data import model, user
from words import CITIES, COLORS, FOODS, ITEMS, JOBS, NAMES, NOUNS, joined, made_up
from world import article


def _record(rng):
    """(sentence, {field: value})"""
    kind = rng.below(4)
    name = rng.pick(NAMES) if rng.chance(80) else made_up(rng)
    if kind == 0:
        fields = {"name": name, "age": rng.between(5, 99), "city": rng.pick(CITIES)}
        text = rng.pick(["{name} is {age} years old and lives in {city}.", "{name}, {age}, is from {city}.",
                         "In {city} lives {name}, who is {age} years old."])
    elif kind == 1:
        fields = {"name": name, "job": rng.pick(JOBS), "city": rng.pick(CITIES), "age": rng.between(18, 70)}
        text = rng.pick(["{name} is {a_job} in {city} and is {age} years old.",
                         "{name} works as {a_job} in {city}, aged {age}."])
    elif kind == 2:
        fields = {"item": rng.pick(ITEMS), "color": rng.pick(COLORS), "price": rng.between(1, 500)}
        text = rng.pick(["The {color} {item} costs {price} coins.", "For {price} coins you get a {color} {item}.",
                         "A {color} {item} is sold for {price} coins."])
    else:
        fields = {"name": name, "food": rng.pick(FOODS), "count": rng.between(2, 60), "happy": rng.chance(50)}
        text = rng.pick(["{name} bought {count} {food} and is {mood}.", "{name} is {mood} about {count} {food}."])
    text = text.format(**fields, a_job=article(fields.get("job", "x")),
                       mood="happy" if fields.get("happy") else "not happy")
    return text, fields


def extract(rng):
    text, fields = _record(rng)
    wanted = rng.sample(list(fields), rng.between(1, len(fields)))
    ask = rng.pick(["Give me {k} as JSON: {t}", "Extract {k} as JSON. {t}", "{t}\nWrite {k} as JSON.",
                    "{t}\nAnswer in JSON with the keys {k}.", "Return a JSON object with {k}.\n{t}",
                    "Give me a JSON object with {k}: {t}", "{t} Give me {k} in JSON."])
    return ask.format(k=", ".join(wanted) if rng.chance(60) else joined(wanted), t=text), {key: fields[key] for key in wanted}


def array(rng):
    if rng.chance(50):
        items = [rng.between(0, 999) for _ in range(rng.between(2, 7))]
    else:
        items = rng.sample(NOUNS, rng.between(2, 7))
    text = ", ".join(map(str, items))
    ask = rng.pick(["Write this list as JSON: {}", "Turn this into a JSON array: {}", "Make a JSON array of: {}",
                    "{}\nGive this list as JSON."])
    return ask.format(text), items


def pairs(rng):
    """Key: value lines of any keys at all into an object."""
    fields = {}
    for _ in range(rng.between(2, 5)):
        key = rng.pick(NOUNS) if rng.chance(70) else made_up(rng).lower()
        kind = rng.below(3)
        fields[key] = rng.between(0, 999) if kind == 0 else rng.pick(NAMES + CITIES) if kind == 1 else rng.pick(COLORS)
    text = rng.pick(["\n", ", "]).join(f"{key}: {value}" for key, value in fields.items())
    ask = rng.pick(["Write this as JSON: {}", "Turn this into a JSON object:\n{}", "{}\nGive this as JSON.",
                    "Convert to JSON:\n{}"])
    return ask.format(text), fields


def one(rng):
    ask, value = rng.weighted([(extract, 6), (array, 2), (pairs, 3)])(rng)
    return ask, json.dumps(value)


def make(rng, held_out=False):
    messages = []
    for _ in range(1 if held_out else rng.pick([1, 1, 2, 3])):
        ask, answer = one(rng)
        messages += [user(ask), model(answer)]
    return {"task": "json", "messages": messages, "check": {"kind": "json"}}


def make_thinking(rng, held_out=False):
    ask, answer = one(rng)
    return {"task": "thinking", "messages": [user(ask), model(answer, "The user wants JSON. I pick the values.")],
            "thinking": True, "check": {"kind": "json"}}
