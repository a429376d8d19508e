"""Answers with evalset.judge's verdicts: the table that the judge in src/eval is tested with.

    python3 judge_cases.py OUT.jsonl            writes it
    python3 judge_cases.py --check FILE.jsonl   fails unless FILE is what would be written
"""
import json
import sys

from evalset import judge

END, CALLS = "<turn|>", "<|tool_response>"
QUOTE = '<|"|>'


def item(kind, content=None, thinking=False, stop=106, calls=None, **check):
    reference = {"content": content} if content is not None else {}
    if calls is not None:
        reference["tool_calls"] = [{"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": given}}
                                   for i, (name, given) in enumerate(calls)]
    return {"id": "case", "task": "case", "messages": [{"role": "user", "content": "?"}], "enable_thinking": thinking,
            "reference": reference, "stop": stop, "check": {"kind": kind, **check}}


def cases():
    exact = item("exact", "Rufus enjoys sailing.")
    for text in ("Rufus enjoys sailing.<turn|>", " \n\u00a0Rufus enjoys sailing.\u2003\u3000\x1c<turn|>",
                 "\u200bRufus enjoys sailing.<turn|>", "\ufeffRufus enjoys sailing.<turn|>",
                 "Rufus enjoys sailing.", "Rufus enjoys sailing.<eos>", "Rufus enjoys sailing.<|tool_response>",
                 "Rufus enjoys sailing.<turn|><turn|>", "Rufus enjoys sailing.<turn|>\n", "Rufus enjoys sailing", "<turn|>", "",
                 "rufus enjoys sailing.<turn|>", "Rufus  enjoys sailing.<turn|>", "Rufus enjoys sailing.<eos><turn|>",
                 "<|channel>thought\n<channel|>Rufus enjoys sailing.<turn|>",
                 "<|channel>thought\n \n<channel|>Rufus enjoys sailing.<turn|>",
                 "<|channel>thought\nHm.<channel|>Rufus enjoys sailing.<turn|>",
                 "<|channel><channel|>Rufus enjoys sailing.<turn|>", "<|channel>Rufus enjoys sailing.<turn|>",
                 "Rufus enjoys sailing.<|tool_call>call:a{}<tool_call|><turn|>",
                 "Rufus enjoys<|tool_call>call:a{}<tool_call|> sailing.<turn|>",
                 "Rufus enjoys sailing.<|turn><turn|>", "Rufus enjoys sailing.|><turn|>"):
        yield exact, text
    yield item("exact", "  43, 39\n"), "43, 39" + END
    yield item("exact", ""), END
    yield item("exact", "a <| b"), "a <| b" + END
    yield item("exact", "x", stop=1), "x<eos>"
    yield item("exact", "Ünïcödé 世界"), "Ünïcödé 世界" + END

    thought = item("exact", "70 * 4 = 280", thinking=True)
    for text in ("<|channel>thought\n70 * 4\n<channel|>70 * 4 = 280<turn|>", "<|channel>70 * 4<channel|>70 * 4 = 280<turn|>",
                 "<|channel>thought\n<channel|>70 * 4 = 280<turn|>", "<|channel>thought\n\n \t<channel|>70 * 4 = 280<turn|>",
                 "<|channel>thought<channel|>70 * 4 = 280<turn|>", "70 * 4 = 280<turn|>",
                 "<|channel>thought\n70 * 4 = 280<turn|>", " <|channel>thought\na<channel|>70 * 4 = 280<turn|>",
                 "<|channel>thought\na<channel|>70 * 4 = 280<channel|><turn|>",
                 "<|channel>thought\na<channel|><|channel>thought\nb<channel|>70 * 4 = 280<turn|>",
                 "<|channel>thought\na <|tool_call> b<channel|>70 * 4 = 280<turn|>",
                 "<|channel>thought\nthought\n<channel|>70 * 4 = 280<turn|>"):
        yield thought, text

    one_of = item("one_of", answers=["A frog says croak.", "Croak.", ""])
    for text in ("Croak.<turn|>", " A frog says croak. <turn|>", "croak.<turn|>", "<turn|>", "Croak. Croak.<turn|>"):
        yield one_of, text
    yield item("one_of", answers=[" Croak. "]), "Croak." + END  # answers are not stripped
    yield item("one_of", answers=[]), END

    words = item("min_words", words=3)
    for text in ("one two three<turn|>", "one two<turn|>", "one\ttwo\nthree<turn|>", "one\u00a0two\u2028three<turn|>",
                 "one\u200btwo three<turn|>", "  one  two  three  <turn|>", "one two three", "a\x1cb\x1fc<turn|>", "世 界 !<turn|>"):
        yield words, text
    yield item("min_words", words=0), END

    some = item("no_call")
    for text in ("Fine.<turn|>", "<turn|>", " \n<turn|>", "<|tool_call>call:a{}<tool_call|><|tool_response>",
                 "Fine.<|tool_call>call:a{}<tool_call|><turn|>", "Fine.<|tool_response>"):
        yield some, text

    reference = '{"grass": "blue", "cup": 25, "tea": [1, true, null, "é"], "deep": {"x": -0.5}}'
    wanted = item("json", reference)
    for text in (reference, '{"cup":25,"deep":{"x":-5e-1},"tea":[1,true,null,"\\u00e9"],"grass":"blue"}',
                 reference.replace("25", "25.0"), reference.replace("25", "2.5e1"), reference.replace("25", "26"),
                 reference.replace("true", "1"), reference.replace("[1,", "[true,"), reference.replace("true", "1.0"),
                 reference.replace("null", "0"), reference.replace("null", "false"), reference.replace('"blue"', '"Blue"'),
                 reference.replace("25", '"25"'), reference[:-1] + ', "more": 1}', reference.replace('"cup": 25, ', ""),
                 reference[:-1] + ', "cup": 25}', reference[:-1] + ', "cup": 1}', reference.replace("25", "025"),
                 reference.replace("25", "NaN"), reference.replace("25", "1e999"), reference.replace("25", "25" + "0" * 30),
                 reference[:-1], reference + "}", "\ufeff" + reference, "\u3000" + reference + "\n", f"[{reference}]", "",
                 "null", reference.replace('"é"', '"\\ud800"'), reference.replace('"é"', '"e\u0301"'),
                 reference.replace("blue", "bl\nue"), reference.replace("blue", "\\u0062lue"), f"```json\n{reference}\n```",
                 reference.replace('{"grass"', '{\u00a0"grass"'), reference.replace(", null", ", null,")):
        yield wanted, text + END
    yield item("json", "[]"), "[ ]" + END
    yield item("json", "[]"), "{}" + END
    yield item("json", "1"), "true" + END
    yield item("json", "0"), "false" + END
    yield item("json", "0"), "-0" + END
    yield item("json", "0"), "-0.0" + END
    yield item("json", '"1"'), "1" + END
    yield item("json", "[1, [2, 3]]"), "[1, [2, 3.0]]" + END
    yield item("json", "[1, [2, 3]]"), "[1, [3, 2]]" + END
    yield item("json", "[1]"), "[1, 1]" + END

    call = item("tool_call", stop=50, calls=[("find_item", {"product": "cake", "Count": 2, "b": True, "A": None})])
    good = f"<|tool_call>call:find_item{{A:null,b:true,Count:2,product:{QUOTE}cake{QUOTE}}}<tool_call|>"
    for text in (good + CALLS, good + END, good, good + good + CALLS, good.replace("true", "True") + CALLS,
                 good.replace("Count:2,", "") + CALLS, good.replace("A:null,b:true", "b:true,A:null") + CALLS,
                 good.replace(QUOTE, '"') + CALLS, good.replace("<tool_call|>", "") + CALLS, "Sure. " + good + CALLS,
                 good + "Done." + CALLS, CALLS, good.replace(":2", ": 2") + CALLS, good.replace("find_item", "find") + CALLS,
                 "<|channel>thought\nLook.<channel|>" + good + CALLS, "<|channel>thought\n<channel|>" + good + CALLS,
                 good + "<tool_call|>" + CALLS, good + "<|tool_call>" + CALLS):
        yield call, text
    both = item("tool_call", stop=50, calls=[("a", {}), ("b", {"x": {"Z": [1, 2.5, "s", {"k": False}], "y": 1e22}})])
    first, second = "<|tool_call>call:a{}<tool_call|>", (
        f"<|tool_call>call:b{{x:{{y:1e+22,Z:[1,2.5,{QUOTE}s{QUOTE},{{k:false}}]}}}}<tool_call|>")
    for text in (first + second, second + first, first, second, first + "\n" + second):
        yield both, text + CALLS
    thinking_call = item("tool_call", thinking=True, stop=50, calls=[("a", {"É": 1, "d": 0.1, "f": 100.0})])
    for text in ("<|channel>thought\nLook.<channel|>", ""):
        yield thinking_call, text + "<|tool_call>call:a{d:0.1,f:100.0,É:1}<tool_call|>" + CALLS
    yield item("tool_call", stop=50), CALLS


def table():
    return "".join(json.dumps({"item": line, "text": text, "right": judge(line, text)}, ensure_ascii=False) + "\n"
                   for line, text in cases())


def main(*arguments):
    if arguments[:1] == ("--check",):
        with open(arguments[1], encoding="utf-8", newline="") as file:
            same = file.read() == table()
        if not same:
            sys.exit(f"{arguments[1]} is not what this script writes: the judge or the cases have changed")
        return
    with open(arguments[0], "w", encoding="utf-8", newline="") as file:
        file.write(table())


if __name__ == "__main__":
    main(*sys.argv[1:])
