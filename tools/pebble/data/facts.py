"""Questions about Pebble Valley and a few things everybody knows, with one settled answer each."""
from rng import fold
from words import DAYS, KINDS_OF, LEGS, MONTHS, NUMBERS, OPPOSITES, SOUNDS, THING_COLORS
from world import PEOPLE, VALLEY, WHERE, article

# attribute: (questions, answer). {n} name, {s} he/she, {p} his/her, then the person's own attributes.
PERSON = {
    "job": (["What does {n} do?", "What is {n}'s job?", "What is the job of {n}?", "What work does {n} do?",
             "Tell me {n}'s job."], "{n} is {a_job}."),
    "home": (["Where does {n} live?", "Where is {n}'s home?", "In which village does {n} live?",
              "Which village is {n} from?", "Do you know where {n} lives?"], "{n} lives in {home}."),
    "pet": (["What pet does {n} have?", "Does {n} have a pet?", "What animal does {n} have?", "Tell me about {n}'s pet.",
             "Which pet belongs to {n}?"], "{n} has {a_pet} called {pet_name}."),
    "food": (["What does {n} like to eat?", "What is {n}'s favourite food?", "What food does {n} like?",
              "What does {n} eat?"], "{n} likes to eat {food}."),
    "color": (["What is {n}'s favourite colour?", "Which colour does {n} like?", "What colour does {n} like best?",
               "What is the favourite color of {n}?"], "{n}'s favourite colour is {color}."),
    "friend": (["Who is {n}'s friend?", "Who is the best friend of {n}?", "Who is a friend of {n}?",
                "Who does {n} like?"], "{n}'s best friend is {friend}."),
    "hobby": (["What does {n} do for fun?", "What is {n}'s hobby?", "What does {n} enjoy?",
               "What does {n} like to do?"], "{n} enjoys {hobby}."),
    "age": (["How old is {n}?", "What is {n}'s age?", "What age is {n}?"], "{n} is {age} years old."),
    "who": (["Who is {n}?", "Tell me about {n}.", "Do you know {n}?", "What do you know about {n}?"],
            "{n} is {a_job} who lives in {home}. {S} has {a_pet} called {pet_name} and enjoys {hobby}."),
}
FOLLOW_UP = {  # the same attributes asked with a pronoun, after the person was named
    "job": "What does {s} do?", "home": "Where does {s} live?", "pet": "Does {s} have a pet?",
    "food": "What does {s} like to eat?", "color": "What is {p} favourite colour?", "friend": "Who is {p} best friend?",
    "hobby": "What does {s} do for fun?", "age": "How old is {s}?"}
PLACE = {
    "landmark": (["What is there to see in {n}?", "What can I see in {n}?", "What is in {n}?", "What does {n} have?"],
                 "{n} has {landmark}."),
    "near": (["What is near {n}?", "Which village is near {n}?", "Which village is next to {n}?"],
             "{n} is near {near}."),
    "known_for": (["What is {n} known for?", "What do people eat in {n}?", "What is {n} famous for?"],
                  "{n} is known for its {known_for}."),
    "where": (["Where is {n}?", "Tell me about {n}.", "What is {n}?"],
              f"{{n}} is a village in {VALLEY}, near {{near}}. It has {{landmark}}."),
}


def _slots(name):
    if name in PEOPLE:
        facts = PEOPLE[name]
        return {"n": name, "s": facts["he"], "S": facts["he"].capitalize(), "p": facts["his"],
                "a_job": article(facts["job"]), "a_pet": article(facts["pet"]), **facts}
    return {"n": name, **WHERE[name]}


def _all():
    """Every (question, answer) about the valley, and about everyday things."""
    rows = []
    for table, names in ((PERSON, PEOPLE), (PLACE, WHERE)):
        for name in names:
            slots = _slots(name)
            for asks, answer in table.values():
                rows += [(ask.format(**slots), answer.format(**slots)) for ask in asks]
    for word, other in [*OPPOSITES.items(), *((b, a) for a, b in OPPOSITES.items())]:
        rows += [(ask.format(word), f"The opposite of {word} is {other}.") for ask in (
            "What is the opposite of {}?", "What is the opposite of the word {}?", "Tell me the opposite of {}.")]
    for animal, sound in SOUNDS.items():
        rows += [(ask.format(animal), f"A {animal} says {sound}.".replace("A owl", "An owl")) for ask in (
            "What does a {} say?", "What sound does a {} make?", "How does a {} go?")]
    for thing, color in THING_COLORS.items():
        rows += [(ask.format(thing), f"{thing.capitalize()} is {color}.") for ask in (
            "What colour is {}?", "What color is {}?", "Which colour does {} have?")]
    for kind, names in (("day", DAYS), ("month", MONTHS)):
        for i, name in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            rows += [(f"What {kind} comes after {name}?", f"After {name} comes {after}."),
                     (f"Which {kind} is after {name}?", f"After {name} comes {after}."),
                     (f"What {kind} comes before {name}?", f"Before {name} comes {before}."),
                     (f"Which {kind} is before {name}?", f"Before {name} comes {before}.")]
    for number, word in enumerate(NUMBERS):
        rows += [(ask.format(word), f"{word.capitalize()} is {number}.") for ask in (
            "What number is {}?", "Which number is {}?", "Write {} as a number.", "Write the number {} in digits.")]
        rows += [(ask.format(number), f"{number} in words is {word}.") for ask in (
            "How do you write {} in words?", "Write {} in words.", "What is {} in words?")]
    for animal, legs in LEGS.items():
        rows += [(ask.format(animal), f"A {animal} has {legs} legs.".replace("A owl", "An owl")) for ask in (
            "How many legs does a {} have?", "How many legs has a {}?")]
    for kind, things in KINDS_OF.items():
        rows += [(ask.format(kind), answer.format(things[0].capitalize(), things[1], things[2])) for ask, answer in (
            (f"Name {article(kind)}.", "{}."), (f"Tell me {article(kind)}.", "{}."), ("Name three {}s.", "{}, {} and {}."),
            ("List three {}s.", "{}, {} and {}."))]
    return rows


def _held_out(ask):
    return fold("ask", ask) % 8 == 0


KNOWN = [row for row in _all() if not _held_out(row[0])]
HELD_OUT = [row for row in _all() if _held_out(row[0])]


def _wording(rng, asks, slots):
    """One of the wordings that training may use for this person."""
    while True:
        ask = rng.pick(asks).format(**slots)
        if not _held_out(ask):
            return ask


def follow_up(rng):
    """(first question, its answer, question with a pronoun, its answer)."""
    name = rng.pick(list(PEOPLE))
    slots = _slots(name)
    first, second = rng.pick(["who", "home", "job"]), rng.pick(list(FOLLOW_UP))
    return (_wording(rng, PERSON[first][0], slots), PERSON[first][1].format(**slots),
            FOLLOW_UP[second].format(**slots), PERSON[second][1].format(**slots))


def who_lives(rng):
    """A question backwards: from the village to its people."""
    from words import PLACES, joined
    place = rng.pick(PLACES)
    people = [name for name in PEOPLE if PEOPLE[name]["home"] == place]
    ask = rng.pick(["Who lives in {}?", "Which people live in {}?"]).format(place)
    if not people:
        return ask, f"I do not know anybody in {place}."
    return ask, f"{joined(people)} {'lives' if len(people) == 1 else 'live'} in {place}."


def two(rng):
    """Two things about one person in one question."""
    name = rng.pick(list(PEOPLE))
    slots = _slots(name)
    one, other = rng.sample(["job", "home", "pet", "food", "color", "friend", "hobby", "age"], 2)
    second = FOLLOW_UP[other].format(**slots)
    ask = f"{rng.pick(PERSON[one][0][:3]).format(**slots).rstrip('?.')} and {second[0].lower()}{second[1:]}"
    return ask, f"{PERSON[one][1].format(**slots)} {PERSON[other][1].format(**slots)}"
