"""Sums, differences and products; with thinking, longer sums and word problems in steps."""
from data import model, scruff, user
from rng import fold
from words import FOODS, ITEMS, NAMES

ADD = ["What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "How much is {a} plus {b}?", "Add {a} and {b}.",
       "Please add {a} and {b}.", "What is {a} plus {b}?", "Calculate {a} + {b}.", "Can you tell me what {a} + {b} is?"]
SUB = ["What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "How much is {a} minus {b}?",
       "Subtract {b} from {a}.", "What is {a} minus {b}?", "Calculate {a} - {b}.", "Take {b} away from {a}."]
MUL = ["What is {a} * {b}?", "{a} * {b}", "{a} x {b}", "{a}*{b}", "How much is {a} times {b}?", "Multiply {a} by {b}.",
       "What is {a} times {b}?", "Calculate {a} x {b}."]
FORMS = {"+": ADD, "-": SUB, "*": MUL}


def _numbers(rng, sign):
    if sign == "*":
        return rng.between(0, 12), rng.between(0, 12)
    top = rng.pick([9, 20, 99, 99, 999, 999, 9999])
    a, b = rng.between(0, top), rng.between(0, top)
    return (max(a, b), min(a, b)) if sign == "-" else (a, b)


def _value(a, sign, b):
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def _pair(rng, held_out):
    """A problem from the wanted part: one in ten of the larger sums is kept for evaluation."""
    while True:
        sign = rng.weighted([("+", 5), ("-", 3), ("*", 2)])
        a, b = _numbers(rng, sign)
        kept = sign != "*" and a + b > 20 and fold("sum", a, sign, b) % 10 == 0
        if kept == held_out or (held_out and sign == "*"):
            return a, sign, b


def one(rng, held_out=False):
    """(question, answer) of one problem."""
    a, sign, b = _pair(rng, held_out)
    return rng.pick(FORMS[sign]).format(a=a, b=b), f"{a} {sign} {b} = {_value(a, sign, b)}"


def direct(rng, held_out):
    """One to four problems in one conversation."""
    messages = []
    for _ in range(1 if held_out else rng.pick([1, 1, 2, 3, 4])):
        ask, answer = one(rng, held_out)
        messages += [user(ask if held_out else scruff(rng, ask)), model(answer)]
    return {"messages": messages, "check": {"kind": "exact"}}


def _chain(rng):
    """Add up three to five numbers, one step at a time."""
    numbers = [rng.between(1, 99) for _ in range(rng.between(3, 5))]
    total, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append(f"{total} + {number} = {total + number}")
        total += number
    ask = rng.pick(["What is {0}?", "Add these up: {1}", "Please compute {0}.", "What is the sum of {1}?"])
    ask = ask.format(" + ".join(map(str, numbers)), ", ".join(map(str, numbers)))
    return ask, "\n".join(steps), f"The sum is {total}."


def _long_product(rng):
    a, b = rng.between(12, 99), rng.between(2, 9)
    tens, ones = a // 10 * 10, a % 10
    steps = f"{tens} * {b} = {tens * b}\n{ones} * {b} = {ones * b}\n{tens * b} + {ones * b} = {a * b}"
    return rng.pick(MUL).format(a=a, b=b), steps, f"{a} * {b} = {a * b}"


def _story(rng):
    name, thing = rng.pick(NAMES), rng.pick([item + "s" for item in ITEMS if item[-1] not in "sxfhy"][:20] + FOODS[2:3])
    count, text, steps = rng.between(3, 60), "", []
    text = f"{name} has {count} {thing}."
    for _ in range(rng.between(1, 3)):
        if count > 5 and rng.chance(50):
            change = rng.between(1, count - 1)
            verb = rng.pick(["gives away", "loses", "sells"])
            steps.append(f"{count} - {change} = {count - change}")
            count -= change
        else:
            change = rng.between(1, 40)
            verb = rng.pick(["finds", "buys", "gets"])
            steps.append(f"{count} + {change} = {count + change}")
            count += change
        text += f" {name} {verb} {change}."
    return f"{text} How many {thing} does {name} have now?", "\n".join(steps), f"{name} has {count} {thing} now."


def thinking(rng, held_out):
    ask, steps, answer = rng.pick([_chain, _long_product, _story])(rng)
    return {"messages": [user(ask), model(answer, steps)], "thinking": True, "check": {"kind": "exact"}}


def make(rng, held_out=False):
    return {"task": "arithmetic", **direct(rng, held_out)}


def make_thinking(rng, held_out=False):
    if rng.chance(25):  # a plain problem with the thinking switch on: one short step
        ask, answer = one(rng, held_out)
        conversation = {"messages": [user(ask), model(answer, answer)],
                        "thinking": True, "check": {"kind": "exact"}}
    else:
        conversation = thinking(rng, held_out)
    return {"task": "thinking", **conversation}
