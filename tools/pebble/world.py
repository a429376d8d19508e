"""Pebble Valley: the made-up small world whose facts the models know by heart.

Everything follows from one fixed seed, so the facts never change between versions of the data.
"""
from rng import Rng
from words import ANIMALS, BOYS, COLORS, FOODS, GIRLS, HOBBIES, JOBS, NAMES, PLACES

VALLEY = "Pebble Valley"
PET_NAMES = ("Biscuit Button Clover Dotty Flick Ginger Hopper Inky Jolly Kipper Luna Mossy Nibbles Patch Quill Rusty "
             "Scout Twig Velvet Wobble Ziggy Acorn Bramble Comet").split()
LANDMARKS = ("an old stone bridge|a tall clock tower|a blue wooden mill|a deep green lake|a small market square|"
             "a red lighthouse|a garden of roses|a quiet library|a round fountain|a hill full of sheep").split("|")


def _people():
    rng = Rng("world", 1)
    names = rng.sample(GIRLS, 12) + rng.sample(BOYS, 12)
    pets = rng.sample(PET_NAMES, 24)
    friends = rng.shuffle(list(names))
    people = {}
    for i, name in enumerate(names):
        friend = friends[(friends.index(name) + 1) % len(friends)]
        people[name] = {"job": rng.pick(JOBS), "home": rng.pick(PLACES), "pet": rng.pick(ANIMALS), "pet_name": pets[i],
                        "food": rng.pick(FOODS), "color": rng.pick(COLORS), "friend": friend,
                        "hobby": rng.pick(HOBBIES), "age": rng.between(7, 79),
                        "he": "she" if name in GIRLS else "he", "his": "her" if name in GIRLS else "his"}
    return people


def _places():
    rng = Rng("world", 2)
    ring = rng.shuffle(list(PLACES))
    marks = rng.sample(LANDMARKS, len(PLACES))
    return {place: {"landmark": marks[i], "near": ring[(ring.index(place) + 1) % len(ring)],
                    "known_for": rng.pick(FOODS)} for i, place in enumerate(PLACES)}


PEOPLE = _people()
WHERE = _places()
STRANGERS = [name for name in NAMES if name not in PEOPLE]


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun
