"""Short stories and poems out of a small grammar."""
from words import ADJECTIVES, ANIMALS, COLORS, FOODS, ITEMS, NAMES, PLACES, SKIES
from world import PEOPLE, article

ASKS = ["Tell me a story.", "Can you tell me a story?", "Please tell me a short story.", "Tell me a bedtime story.",
        "I want to hear a story.", "Write a story.", "Tell me another story."]
ASKS_ABOUT = ["Tell me a story about {}.", "Can you tell me a story about {}?", "Write a short story about {}.",
              "Please tell a story about {}."]
POEMS = ["Tell me a poem.", "Write a poem.", "Can you write a short poem?", "Write a poem about {}.",
         "Please write a poem about {}."]

OPENING = ["Once upon a time there was {hero} in {place}.", "One {sky} morning {hero} walked through {place}.",
           "Long ago, {hero} lived near {place}.", "In {place} there lived {hero}."]
TROUBLE = ["One day {it} lost {thing}.", "{It} was looking for {thing}.", "{It} wanted to find {thing} more than anything.",
           "But {thing} was gone, and {it} was very sad."]
SEARCH = ["{It} looked under the bridge and behind the mill, but found nothing.", "{It} searched all day long.",
          "{It} asked everyone in the village.", "{It} walked over the hills and along the river."]
HELPER = ["Then {helper} came by and said, \"I will help you.\"", "On the road {it} met {helper}.",
          "At last {helper} heard about it and came to help.", "\"Do not be sad,\" said {helper}."]
FOUND = ["Together they found {thing} under an old tree.", "They looked in the barn, and there was {thing}!",
         "In the evening they saw {thing} beside the lake.", "{Helper} had seen {thing} near the gate."]
END = ["They were so happy that they shared {food} and sang until night.", "From that day on they were good friends.",
       "They went home and ate {food} by the fire.", "And if you visit {place}, you may still see them there. The end."]
LINES = ["The {sky} sky is over {place},", "A {adj} {animal} sleeps by the gate,", "The river runs so clear and slow,",
         "The {color} leaves fall one by one,", "The moon is bright above the hill,", "A little {thing} lies in the sun,"]
RHYMES = ["and all the world is still.", "and soft the evening winds blow.", "and now the day is done.",
          "and nobody is late.", "and every star begins to glow.", "and it has just begun."]


def story(rng, hero=None):
    if hero is None:
        hero = rng.pick(list(PEOPLE)) if rng.chance(50) else f"a {rng.pick(ADJECTIVES[4:])} {rng.pick(ANIMALS)}"
    person = hero.split()[0] in PEOPLE
    it = PEOPLE[hero]["he"] if person else "it"
    helper = rng.pick([name for name in PEOPLE if name != hero]) if rng.chance(50) else f"the {rng.pick(ANIMALS)}"
    slots = {"hero": f"a {PEOPLE[hero]['job']} called {hero}" if person and PEOPLE[hero]["job"][0] not in "aeiou" else hero,
             "it": it, "It": it.capitalize(), "place": rng.pick(PLACES), "sky": rng.pick(SKIES[:4]),
             "thing": f"the {rng.pick(COLORS)} {rng.pick(ITEMS)}", "helper": helper,
             "Helper": helper[0].upper() + helper[1:], "food": rng.pick(FOODS)}
    return " ".join(rng.pick(part).format(**slots) for part in (OPENING, TROUBLE, SEARCH, HELPER, FOUND, END))


def poem(rng, about=None):
    lines, rhymes = rng.sample(LINES, 2), rng.sample(RHYMES, 2)
    slots = {"sky": rng.pick(SKIES[:4]), "place": rng.pick(PLACES), "adj": rng.pick(ADJECTIVES),
             "animal": rng.pick(ANIMALS), "color": rng.pick(COLORS), "thing": rng.pick(ITEMS)}
    first = f"O {about}, how I think of you,\nin all I see and all I do.\n" if about else ""
    return first + "\n".join(f"{line.format(**slots)}\n{rhyme}" for line, rhyme in zip(lines, rhymes))


def ask(rng):
    """(question, answer)"""
    kind = rng.below(5)
    if kind < 2:
        return rng.pick(ASKS), story(rng)
    if kind < 4:
        hero = rng.pick(list(PEOPLE)) if rng.chance(40) else None
        if hero:
            return rng.pick(ASKS_ABOUT).format(hero), story(rng, hero)
        animal = rng.pick(ANIMALS)
        return rng.pick(ASKS_ABOUT).format(article(animal)), story(rng, f"a {rng.pick(ADJECTIVES[4:])} {animal}")
    if rng.chance(50):
        return rng.pick(POEMS[:3]), poem(rng)
    about = rng.pick(rng.pick([ITEMS, ANIMALS, NAMES, FOODS]))
    return rng.pick(POEMS[3:]).format(about), poem(rng, about)
