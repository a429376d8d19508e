"""Questions about a sound: high or low, rising or falling, how many beeps.

make(rng, held_out) gives {"task": name, "tones": what sounds.play takes, "loudness": percent, "ask": text, "answer": text}.
One sound in eight is held out.
"""
from rng import fold
from sounds import PIECES

OFTEN = [("pitch", 1), ("slope", 1), ("beeps", 3)]  # what learns slowly comes more often
TASKS = [task for task, _ in OFTEN]
LOW, HIGH = (6, 20), (80, 150)  # tones: 150 to 500 Hz, 2,000 to 3,750 Hz


def _within(rng, tones):
    """Silence before and behind."""
    before = rng.below(PIECES - len(tones) + 1)
    return [0] * before + tones + [0] * (PIECES - before - len(tones))


def pitch(rng):
    high = rng.chance(50)
    tone, length = rng.between(*(HIGH if high else LOW)), rng.between(8, 24)
    ask = rng.pick(["Is it high or low?", "Is the sound high or low?", "Is the tone high or low?"])
    return _within(rng, [tone] * length), ask, f"It is {'high' if high else 'low'}."


def slope(rng):
    rises, length = rng.chance(50), rng.between(12, 28)
    low = rng.between(8, 40)
    top = low + rng.between(30, 100)
    tones = [low + (top - low) * i // (length - 1) for i in range(length)]
    ask = rng.pick(["Does it go up or down?", "Does the sound go up or down?", "Does the tone go up or down?"])
    return _within(rng, tones if rises else tones[::-1]), ask, f"It goes {'up' if rises else 'down'}."


def beeps(rng):
    number, tone = rng.between(2, 6), rng.between(16, 120)
    tones = [tone]
    for _ in range(number - 1):
        tones += [0] * rng.between(2, 3) + [tone]
    ask = rng.pick(["How many are there?", "How many beeps are there?", "How many beeps do you hear?"])
    return _within(rng, tones), ask, f"There are {number}."


def make(rng, held_out=False, task=None, often=None):
    task = task or rng.weighted(often or OFTEN)
    while True:
        tones, ask, answer = globals()[task](rng)
        if (fold(tones) % 8 == 0) == held_out:
            break
    return {"task": task, "tones": tones, "loudness": rng.between(20, 90), "ask": ask, "answer": answer}
