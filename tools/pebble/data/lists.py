"""Lists of words and numbers: copy, reverse, sort, pick, count."""
from data import model, user
from words import COMMON, NOUNS, joined, made_up

COPY = ["Repeat this list: {0}", "Copy this list: {0}", "Say this back to me: {0}", "Repeat after me: {0}",
        "Write this list again: {0}"]
REVERSE = ["Reverse this list: {0}", "Write this list backwards: {0}", "Put this list in reverse order: {0}"]
SORT = ["Sort this list: {0}", "Sort these: {0}", "Put these in order: {0}", "Please sort: {0}",
        "Sort from smallest to largest: {0}"]
SORT_WORDS = ["Sort this list: {0}", "Sort these words: {0}", "Put these in alphabetical order: {0}",
              "Sort alphabetically: {0}", "Please sort: {0}"]
DOWN = ["Sort from largest to smallest: {0}", "Sort in descending order: {0}", "Put these in falling order: {0}"]
WORDS = sorted({word for word in COMMON + NOUNS if len(word) > 2})
ORDINALS = "first second third fourth fifth sixth".split()


def _words(rng, low, high):
    return rng.sample(NOUNS if rng.chance(70) else WORDS, rng.between(low, high))


def _numbers(rng, low, high):
    top = rng.pick([9, 99, 99, 999])
    count = rng.between(low, min(high, 8))
    found = []
    while len(found) < count:
        number = rng.between(0, top)
        if number not in found:
            found.append(number)
    return found


def _mixed(rng, low, high):
    """Anything that can be copied: known words, numbers, words nobody knows."""
    kind = rng.below(4)
    if kind == 0:
        return [str(n) for n in _numbers(rng, low, high)]
    if kind == 1:
        return [made_up(rng, rng.between(2, 3)) for _ in range(rng.between(low, min(high, 8)))]
    return _words(rng, low, high)


def one(rng):
    """(question, answer, thought). Some lists come with blanks or lines instead of commas, some requests in small letters."""
    ask, answer, thought = _one(rng)
    head, colon, items = ask.partition(": ")
    if rng.chance(15):
        head, ask = head.lower(), head.lower() + colon + items
    if colon and ", " in items and rng.chance(15):
        parts = items.split(", ")
        ask = head + rng.pick([": ", ":\n", " "]) + rng.pick([" ".join(parts), "\n".join(parts), ",".join(parts),
                                                             joined(parts)])
    return ask, answer, thought


def _one(rng):
    kind = rng.weighted([("copy", 4), ("reverse", 2), ("sort", 4), ("sort_words", 3), ("down", 2), ("pick", 2), ("count", 1)])
    if kind == "copy" and rng.chance(30):  # any words, not a list
        text = " ".join(_words(rng, 2, 9))
        text = rng.pick(["{}", "{}.", "{}!", "the {}", "I {} you.", "{}?"]).format(text)
        return rng.pick(["Repeat: {}", "Repeat after me: {}", "Say: {}", "Copy this: {}"]).format(text), text, "I repeat it."
    if kind == "copy":
        text = ", ".join(_mixed(rng, 2, 12))
        return rng.pick(COPY).format(text), text, "I copy the list as it is."
    if kind == "reverse":
        items = _mixed(rng, 2, 8)
        text = ", ".join(items)
        return rng.pick(REVERSE).format(text), ", ".join(items[::-1]), "I read the list from the end."
    if kind == "sort" or kind == "down":
        numbers = _numbers(rng, 3, 8)
        order = sorted(numbers, reverse=kind == "down")
        forms = DOWN if kind == "down" else SORT
        thought = f"The {'largest' if kind == 'down' else 'smallest'} is {order[0]}, the last is {order[-1]}."
        return (rng.pick(forms).format(", ".join(map(str, numbers))), ", ".join(map(str, order)), thought)
    if kind == "sort_words":
        items = _words(rng, 3, 7)
        order = sorted(items)
        return (rng.pick(SORT_WORDS).format(", ".join(items)), ", ".join(order),
                f"The first is {order[0]}, the last is {order[-1]}.")
    items = _words(rng, 2, 6)
    if kind == "count":
        return (f"How many words are in this list: {', '.join(items)}?", f"There are {len(items)} words in the list.",
                " ".join(f"{i + 1} {item}" for i, item in enumerate(items)))
    at = rng.below(len(items))
    where, place = rng.pick([(ORDINALS[at], at), ("last", len(items) - 1)])
    return (f"What is the {where} word of this list: {', '.join(items)}?", f"The {where} word is {items[place]}.",
            " ".join(f"{i + 1} {item}" for i, item in enumerate(items)))


def make(rng, held_out=False):
    messages = []
    for _ in range(1 if held_out else rng.pick([1, 1, 2, 3])):
        ask, answer, _ = one(rng)
        messages += [user(ask), model(answer)]
    return {"task": "lists", "messages": messages, "check": {"kind": "exact"}}


def make_thinking(rng, held_out=False):
    ask, answer, thought = one(rng)
    return {"task": "thinking", "messages": [user(ask), model(answer, thought)], "thinking": True,
            "check": {"kind": "exact"}}
