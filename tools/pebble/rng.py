"""The one random generator of the pebble tools: splitmix64.

state += 0x9E3779B97F4A7C15; z = state
z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; z ^= z >> 31   (all mod 2^64)
below(n) = (z >> 32) * n >> 32. Every draw of the generators is one such step, so the data do not depend on the
Python version. A seed is any tuple of ints and strings, folded with FNV-1a.
"""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def fold(*parts):
    """FNV-1a (64 bit) over the parts' text, the parts separated by a zero byte."""
    value = 0xCBF29CE484222325
    for byte in "\0".join(str(part) for part in parts).encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


class Rng:
    __slots__ = ("state",)

    def __init__(self, *seed):
        self.state = fold(*seed)

    def bits(self):
        self.state = z = (self.state + GOLDEN) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def below(self, limit):
        """Uniform in [0, limit)."""
        return (self.bits() >> 32) * limit >> 32

    def between(self, low, high):
        """Uniform in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, percent):
        return self.below(1000) < percent * 10

    def pick(self, items):
        return items[(self.bits() >> 32) * len(items) >> 32]

    def sample(self, items, count):
        """`count` different items in random order (count <= len(items))."""
        pool, total = list(items), len(items)
        for i in range(count):
            j = i + self.below(total - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:count]

    def shuffle(self, items):
        items[:] = self.sample(items, len(items))
        return items

    def weighted(self, pairs):
        """pairs: [(value, weight)] with integer weights."""
        draw = self.below(sum(weight for _, weight in pairs))
        for value, weight in pairs:
            draw -= weight
            if draw < 0:
                return value
        raise AssertionError("weights")
