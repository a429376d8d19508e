"""Questions about a picture: colour, shape, number of figures, digits, place.

make(rng, held_out) gives {"task": name, "cells": what pictures.draw takes, "ask": text, "answer": text}.
One picture in eight is held out.
"""
from rng import fold
from pictures import COLORS, PLACES, SHAPES, SIDE, mask_index

OFTEN = [("colour", 2), ("shape", 2), ("count", 3), ("digits", 4), ("place", 1)]  # what learns slowly comes more often
TASKS = [task for task, _ in OFTEN]
NAMES = list(COLORS)


def _figure(rng, row, column, figure, color):
    return row, column, mask_index(figure, rng.below(len(PLACES))), NAMES.index(color)


def colour(rng):
    shape, color = rng.pick(SHAPES), rng.pick(NAMES)
    ask = rng.pick(["What colour is it?", "What colour is the {}?", "Which colour is the {}?"]).format(shape)
    return [_figure(rng, rng.below(SIDE), rng.below(SIDE), shape, color)], ask, f"It is {color}."


def shape(rng):
    name, color = rng.pick(SHAPES), rng.pick(NAMES)
    ask = rng.pick(["What is it?", "What do you see?", "What is in the picture?"])
    return [_figure(rng, rng.below(SIDE), rng.below(SIDE), name, color)], ask, f"It is a {name}."


def count(rng):
    name, color, number = rng.pick(SHAPES), rng.pick(NAMES), rng.between(2, 6)
    places = rng.sample(range(SIDE * SIDE), number)
    ask = rng.pick(["How many are there?", "How many {}s are there?", "How many {}s do you see?"]).format(name)
    return [_figure(rng, place // SIDE, place % SIDE, name, color) for place in places], ask, f"There are {number}."


def digits(rng):
    color, length = rng.pick(NAMES), rng.between(1, 2)
    row, column = rng.below(SIDE), rng.below(SIDE - length + 1)
    text = "".join(str(rng.below(10)) for _ in range(length))
    ask = rng.pick(["What number is it?", "Which number do you see?", "What is the number?"])
    return [_figure(rng, row, column + i, digit, color) for i, digit in enumerate(text)], ask, f"It is {text}."


def place(rng):
    name, color = rng.pick(SHAPES), rng.pick(NAMES)
    side, along = rng.below(4), rng.between(2, 5)
    edge = rng.below(2) + (0 if side % 2 == 0 else SIDE - 2)
    row, column = (along, edge) if side < 2 else (edge, along)
    where = ["on the left", "on the right", "at the top", "at the bottom"][side]
    ask = rng.pick(["Where is it?", "Where is the {}?"]).format(name)
    return [_figure(rng, row, column, name, color)], ask, f"It is {where}."


def make(rng, held_out=False, task=None, often=None):
    task = task or rng.weighted(often or OFTEN)
    while True:
        cells, ask, answer = globals()[task](rng)
        if (fold(cells) % 8 == 0) == held_out:
            break
    return {"task": task, "cells": cells, "ask": ask, "answer": answer}
