"""Which task comes how often. `short` fills the rows of ordinary length, `long` the rows of thousands of tokens."""
from data import arithmetic, chat, json_task, lists, mixed, recall, tools
from rng import Rng

SHORT = [(chat.make, 26), (arithmetic.make, 13), (lists.make, 18), (recall.make, 10), (json_task.make, 8),
         (tools.make_train, 15), (mixed.make, 12), (mixed.make_thinking, 4),
         (arithmetic.make_thinking, 6), (chat.make_thinking, 3), (lists.make_thinking, 2), (recall.make_thinking, 1),
         (json_task.make_thinking, 1), (tools.make_thinking, 4)]
# What takes the longest to learn gets more room in training; the tokenizer's sample stays as it is.
TRAINED = SHORT + [(lists.make, 10), (arithmetic.make, 4)]
LEVELLED = (recall.make, recall.make_long)


def conversation(rng, long=False, level=1.0, mixture=TRAINED):
    make = recall.make_long if long else rng.weighted(mixture)
    return make(rng, level=level) if make in LEVELLED else make(rng)


def samples(seed, count):
    """A mixed sample, for the tokenizer and for looking at."""
    return [conversation(Rng("sample", seed, i), mixture=SHORT) for i in range(count)]
