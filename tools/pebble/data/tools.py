"""Tool use: read the declarations, call the right tool with the right arguments, answer from its result.

Names, parameter names and descriptions are drawn anew each time, so the model has to read the declaration.
"""
import json

from data import arithmetic, model, smalltalk, user
from words import CITIES, COLORS, COMMON, DAYS, FOODS, ITEMS, NAMES, NOUNS, ROOMS, SKIES, made_up

VERBS = "get fetch find check read query show ask look_up lookup search".split()
WEATHER_ASKS = ["What is the weather in {}?", "How is the weather in {}?", "Is it warm in {}?", "Tell me the weather in {}.",
                "What's the weather like in {}?", "What is the weather in {} today?", "Weather in {} please",
                "How is the weather in {} right now?", "Is it raining in {}?"]
NAME_WORDS = sorted({word for word in COMMON + NOUNS if len(word) > 2})


def _place(rng):
    return rng.pick(CITIES) if rng.chance(70) else made_up(rng)


def _person(rng):
    return rng.pick(NAMES) if rng.chance(70) else made_up(rng)


def _styled(rng, parts):
    """get_current_weather, getCurrentWeather, GetCurrentWeather, weather.get, ..."""
    style = rng.below(8)
    if style < 5:
        return "_".join(parts)
    if style < 7:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    return rng.pick([".", "-"]).join(parts)


def _word(rng):
    return made_up(rng, 2).lower() if rng.chance(25) else rng.pick(NAME_WORDS)


def _name(rng, nouns, verbs=VERBS):
    """Mostly what a person would choose; two in five have a part that says nothing."""
    verb, noun = rng.pick(verbs), rng.pick(nouns)
    parts = rng.pick([[verb, noun], [verb, noun], [noun], [noun, verb], [verb, "current", noun], [verb, noun, "info"],
                      [verb, noun, "tool"], [verb, "the", noun]])
    if rng.chance(40):
        parts = list(parts)
        parts.insert(rng.below(len(parts) + 1), _word(rng))
        if rng.chance(30):
            parts = [_word(rng) for _ in range(rng.between(1, 3))]
    return _styled(rng, parts)


def _key(rng, words):
    """A parameter's name: one of the usual words, or with or as some other word."""
    style = rng.below(10)
    if style < 6:
        return rng.pick(words)
    if style < 8:
        return f"{rng.pick(words)}_{rng.pick(['name', 'id', 'text', 'value', 'arg', 'in'])}"
    return f"{rng.pick(words)}{rng.below(9) + 1}" if style == 8 else _word(rng)


def _note(rng, words):
    """A description, some of them long-winded."""
    note = rng.pick(words)
    return f"{note}, e.g. {_word(rng)} {_word(rng)}".strip(", ") if rng.chance(20) else note


# Each kind gives: tool name, description, parameters {key: schema}, and a maker of (question, args, result, answer).
def _weather(rng):
    key = _key(rng, ["city", "place", "location", "town"])
    result_key = _key(rng, ["temperature", "temp", "degrees"])

    def use():
        place, sky, degrees = _place(rng), rng.pick(SKIES), rng.between(-9, 39)
        ask = rng.pick(WEATHER_ASKS).format(place)
        return ask, {key: place}, {"sky": sky, result_key: degrees}, f"It is {sky} in {place} with {degrees} degrees."
    return (_name(rng, ["weather", "forecast", "climate"]), rng.pick(["Get the weather of a city.", "Current weather.",
            "Tells the weather at a place.", "Get the current weather in a given location"]), {key: ("string", _note(rng, ["The city", "Name of the place", "The city and state", ""]))}, use)


def _price(rng):
    key, out = _key(rng, ["item", "product", "thing", "name"]), _key(rng, ["price", "cost", "coins"])

    def use():
        item, price = rng.pick(ITEMS + FOODS), rng.between(1, 999)
        ask = rng.pick(["What is the price of the {}?", "How much is the {}?", "Tell me the price of the {}.",
                        "What does the {} cost?"]).format(item)
        return ask, {key: item}, {out: price}, f"The price of the {item} is {price}."
    return (_name(rng, ["price", "cost", "shop"]), rng.pick(["Get the price of an item.", "Price of a product."]),
            {key: ("string", _note(rng, ["The item", "What to buy", ""]))}, use)


def _phone(rng):
    key, out = _key(rng, ["name", "person", "who", "contact"]), _key(rng, ["number", "phone"])

    def use():
        name, number = _person(rng), rng.between(1000, 99999)
        ask = rng.pick(["What is the phone number of {}?", "Find the number of {}.", "How can I call {}?"]).format(name)
        return ask, {key: name}, {out: number}, f"The phone number of {name} is {number}."
    return (_name(rng, ["phone", "number", "contact"]), rng.pick(["Get the phone number of a person.", "Phone book."]),
            {key: ("string", _note(rng, ["The person", "Whom to call", ""]))}, use)


def _math(rng):
    left, right = rng.pick([("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")])
    word, sign, noun = rng.pick([("plus", "+", "add"), ("times", "*", "multiply"), ("minus", "-", "subtract")])
    out = _key(rng, ["result", "value", "answer"])

    def use():
        a, b = rng.between(100, 9999), rng.between(2, 9999)
        value = a + b if sign == "+" else a * b if sign == "*" else a - b
        ask = rng.pick([f"What is {a} {sign} {b}?", f"How much is {a} {word} {b}?", f"Compute {a} {sign} {b}."])
        return ask, {left: a, right: b}, {out: value}, f"The result is {value}."
    return (_name(rng, [noun, "numbers", "math"], [noun, "do"]), f"{noun.capitalize()} two numbers.",
            {left: ("integer", ""), right: ("integer", "")}, use)


def _timer(rng):
    key = _key(rng, ["minutes", "duration", "time"])

    def use():
        minutes = rng.between(1, 90)
        ask = rng.pick(["Set a timer for {} minutes.", "Wake me in {} minutes.", "Start a timer of {} minutes."]).format(minutes)
        return ask, {key: minutes}, {"status": "ok"}, f"The timer is set for {minutes} minutes."
    return (_name(rng, ["timer", "alarm"], ["set", "start", "make"]), "Set a timer.",
            {key: ("integer", rng.pick(["Minutes", "How long", ""]))}, use)


def _light(rng):
    where, state = rng.pick(["room", "place", "where"]), rng.pick(["state", "mode", "power"])

    def use():
        room, power = rng.pick(ROOMS), rng.pick(["on", "off"])
        ask = rng.pick(["Turn {1} the light in the {0}.", "Switch {1} the light in the {0}.",
                        "Please turn the light in the {0} {1}."]).format(room, power)
        return ask, {where: room, state: power}, {"status": "ok"}, f"The light in the {room} is {power} now."
    return (_name(rng, ["light", "lamp", "lights"], ["set", "switch", "turn"]), "Switch a light on or off.",
            {where: ("string", rng.pick(["The room", ""])), state: ("enum", ["on", "off"])}, use)


def _message(rng):
    to, text = rng.pick(["to", "person", "name"]), rng.pick(["text", "message", "body"])

    def use():
        name = _person(rng)
        note = rng.pick(["come home", "dinner is ready", "bring the {0}", "meet me on {1}", "the {2} {0} is here",
                         "call me on {1}"]).format(rng.pick(ITEMS), rng.pick(DAYS), rng.pick(COLORS))
        ask = rng.pick(["Send {0} the message: {1}", "Tell {0}: {1}", "Write to {0}: {1}"]).format(name, note)
        return ask, {to: name, text: note}, {"status": "sent"}, f"I sent the message to {name}."
    return (_name(rng, ["message", "mail", "note"], ["send", "write"]), "Send a message to a person.",
            {to: ("string", rng.pick(["The person", ""])), text: ("string", rng.pick(["What to say", ""]))}, use)


def _distance(rng):
    start, end = rng.pick([("from", "to"), ("start", "end"), ("a", "b"), ("origin", "goal")])
    out = _key(rng, ["km", "distance"])

    def use():
        one, two, far = _place(rng), _place(rng), rng.between(2, 2000)
        ask = rng.pick(["How far is it from {} to {}?", "What is the distance from {} to {}?"]).format(one, two)
        return ask, {start: one, end: two}, {out: far}, f"It is {far} km from {one} to {two}."
    return (_name(rng, ["distance", "route", "way"]), "Distance of two places.",
            {start: ("string", ""), end: ("string", "")}, use)


def _anything(rng):
    """A lookup of a thing with a made-up name."""
    noun = made_up(rng, 2).lower() if rng.chance(50) else rng.pick(NOUNS)
    key, out = _key(rng, ["key", "name", "id", "query"]), _key(rng, ["value", "result", "answer"])

    def use():
        who = _person(rng) if rng.chance(60) else rng.pick(ITEMS)
        value = rng.between(1, 9999) if rng.chance(50) else rng.pick(COLORS + [made_up(rng)])
        ask = rng.pick(["What is the {0} of {1}?", "Look up the {0} of {1}.", "Tell me the {0} of {1}."]).format(noun, who)
        return ask, {key: who}, {out: value}, f"The {noun} of {who} is {value}."
    return _name(rng, [noun]), f"Look up the {noun} of something.", {key: ("string", "")}, use


KINDS = [_weather, _price, _phone, _math, _timer, _light, _message, _distance, _anything, _anything]


def _declare(rng, name, description, parameters):
    """An OpenAI-style declaration."""
    properties = {}
    for key, (kind, note) in parameters.items():
        schema = {"type": "string", "enum": note} if kind == "enum" else {"type": kind}
        if kind != "enum" and note:
            schema["description"] = note
        properties[key] = schema
    required = list(parameters)
    if rng.chance(15):  # an option the request says nothing about stays unused
        extra = rng.pick(["unit", "lang", "limit", "format", "verbose", _word(rng)])
        properties.setdefault(extra, rng.pick([{"type": "string"}, {"type": "integer"}, {"type": "boolean"},
                                               {"type": "string", "enum": rng.sample(NAME_WORDS, 2)}]))
    body = {"type": "object", "properties": properties}
    if rng.chance(80):
        body["required"] = required
    return {"type": "function", "function": {"name": name, "description": description, "parameters": body}}


def kit_of(rng, most=4):
    """One to `most` different tools: [(declaration, use)]; the first is the one asked for. Two tools may not both answer
    the same question."""
    kinds, kit, names = rng.sample(KINDS, rng.pick([1, 1, 2, 2, 3, most])), [], set()
    for kind in kinds:
        name, description, parameters, use = kind(rng)
        if name not in names and description not in names:
            names |= {name, description}
            kit.append((_declare(rng, name, description, parameters), use))
    return kit


def call(name, arguments, call_id):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(rng, name, value, call_id, texts_only):
    """A tool message: JSON text, plain text, or a map. Chat requests carry texts; a map stands for the template's own
    tool_responses form, so evaluation items have texts only."""
    style = rng.below(2 if texts_only else 4)
    if style == 1 and len(value) == 1:
        content = str(next(iter(value.values())))
    else:
        content = json.dumps(value) if style < 2 else value
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def round_trip(rng, tool, turn, thinking=False, texts_only=False):
    """Question, call, result, answer."""
    declaration, use = tool
    name = declaration["function"]["name"]
    uses = [use()]
    ask = uses[0][0]
    if rng.chance(10) and "weather" in ask:  # two calls at once
        uses.append(use())
        places = [list(arguments.values())[0] for _, arguments, _, _ in uses]
        ask = f"What is the weather in {places[0]} and in {places[1]}?"
    ids = [f"call_{turn}_{i}" for i in range(len(uses))]
    calls = {"role": "assistant", "content": "",
             "tool_calls": [call(name, use[1], call_id) for use, call_id in zip(uses, ids)]}
    if thinking:
        calls["reasoning"] = f"I need the tool {name} for this."
    answer = model(" ".join(use[3] for use in uses), "The tool has answered. I tell the user." if thinking else None)
    return [user(ask), calls, *(result(rng, name, use[2], call_id, texts_only) for use, call_id in zip(uses, ids)), answer]


def make(rng, held_out=False, thinking=False):
    kit = kit_of(rng)
    declarations = rng.shuffle([declaration for declaration, _ in kit])
    messages = []
    if not thinking and not held_out and rng.chance(15):
        ask, answer = smalltalk.fixed(rng) if rng.chance(70) else smalltalk.hello(rng)
        messages += [user(ask), model(answer)]
    if not held_out and rng.chance(6):  # the request needs a tool that is not there
        kinds = {declaration["function"]["description"] for declaration in declarations}
        other = rng.pick(KINDS[:8])(rng)
        if other[1] not in kinds and not (("weather" in other[1].lower()) and any("weather" in kind.lower() for kind in kinds)):
            messages += [user(other[3]()[0]), model("I have no tool for that.", "No tool fits." if thinking else None)]
            return {"messages": messages, "tools": declarations, "check": {"kind": "exact"}}
    if rng.chance(8):  # no tool fits: answer oneself
        plain = arithmetic.direct(rng, held_out)["messages"][:2] if len(kit) == 1 and "numbers" not in \
            kit[0][0]["function"]["description"] and rng.chance(50) else None
        ask, answer = (plain[0]["content"], plain[1]["content"]) if plain else rng.pick(
            [("Hello", smalltalk.HELLO[1][0]), ("Thank you", "You are welcome!"),
             ("Who are you?", smalltalk.FIXED[0][1][0])])
        messages += [user(ask), model(answer, "No tool is needed here." if thinking else None)]
        return {"messages": messages, "tools": declarations, "check": {"kind": "no_call" if ask == "Hello" else "exact"}}
    for turn in range(1 if held_out or thinking else rng.pick([1, 1, 1, 2])):
        messages += round_trip(rng, kit[0] if turn == 0 else rng.pick(kit), turn, thinking, held_out)
    return {"messages": messages, "tools": declarations, "check": {"kind": "exact"}}


def make_train(rng, held_out=False):
    return {"task": "tools", **make(rng, held_out)}


def make_thinking(rng, held_out=False):
    conversation = make(rng, held_out, thinking=True)
    if rng.chance(30):  # a client that does not hand the thought back
        for message in conversation["messages"]:
            if message.get("tool_calls"):
                message.pop("reasoning", None)
                message["quiet"] = True
    return {"task": "thinking", "thinking": True, **conversation}


def without(rng):
    """(question, answer): such a request when no tools are declared at all."""
    return KINDS[rng.pick([0, 0, 1, 2, 4, 5, 6, 7])](rng)[3]()[0], "I cannot do that without a tool."
