"""tools/fleet.py: its trace, and small fleets of simulated servers. Usage: fleet_test.py LAPIDARY"""

import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import fleet  # noqa: E402

LAPIDARY = sys.argv.pop(1)
# A trace of half a minute, played twenty times as fast.
SMALL = ("--model", "e2b", "--speed", "20", "--seconds", "10", "--rate", "0.4", "--systems", "2", "--turns", "3")


def run(*flags):
    result = subprocess.run([sys.executable, "-B", ROOT / "tools/fleet.py", "--lapidary", LAPIDARY, *SMALL, *flags],
                            capture_output=True, text=True, timeout=240)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)


def trace(**changed):
    options = {"seed": 1, "systems": 8, "system_tokens": (500, 2500), "rate": 0.5, "replicas": 10, "seconds": 60,
               "turns": 4, "think": 8}
    return fleet.make_trace(types.SimpleNamespace(**{**options, **changed}))


class TraceTest(unittest.TestCase):
    def test_the_same_seed_draws_the_same_trace_and_another_does_not(self):
        self.assertEqual(trace(), trace())
        self.assertNotEqual(trace(), trace(seed=2))

    def test_it_has_the_rate_turns_and_systems_asked_for(self):
        talks = trace()
        self.assertEqual(len(talks), 300)
        self.assertTrue(all(0 <= talk["at"] <= 60 for talk in talks))
        self.assertEqual(talks, sorted(talks, key=lambda talk: talk["at"]))
        self.assertAlmostEqual(sum(len(talk["turns"]) for talk in talks) / 300, 3.5, delta=0.6)
        self.assertEqual({talk["system"] for talk in talks}, set(range(8)))
        self.assertEqual(len({(talk["system"], talk["system_tokens"]) for talk in talks}), 8)

    def test_some_begin_in_bursts(self):
        talks = trace()
        most = max(sum(1 for other in talks if 0 <= other["at"] - talk["at"] < 1 and other["system"] == talk["system"])
                   for talk in talks)
        self.assertGreaterEqual(most, 6)

    def test_bench_fleet_plays_it(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "trace.jsonl"
            subprocess.run([sys.executable, "-B", ROOT / "tools/fleet.py", *SMALL, "--replicas", "4", "--write-trace",
                            path], check=True, stderr=subprocess.DEVNULL)
            reports = {}
            for policy in fleet.OURS:
                output = subprocess.run([LAPIDARY, "bench", "fleet", "e2b", "--replicas", "4", "--policy", policy,
                                         "--trace", path, "--json"], check=True, capture_output=True, text=True).stdout
                reports[policy] = json.loads(output)
            turns = sum(len(json.loads(line)["turns"]) for line in path.read_text().splitlines())
        self.assertEqual({report["answers"] for report in reports.values()}, {turns})
        self.assertGreater(reports["prefix"]["hit_rate"], reports["round-robin"]["hit_rate"])

    def test_a_damaged_trace_is_refused_in_a_sentence(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"at": 1}\n')
            file.flush()
            result = subprocess.run([LAPIDARY, "bench", "fleet", "e2b", "--trace", file.name], capture_output=True,
                                    text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn(":1: 'turns' must be an array", result.stderr)


class StreamTest(unittest.TestCase):
    def test_events_are_read_however_they_are_cut(self):
        async def events(*chunks):
            reader = asyncio.StreamReader()
            for chunk in chunks:
                reader.feed_data(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            reader.feed_data(b"0\r\n\r\n")
            return [event async for event in fleet.events_of(reader)]
        self.assertEqual(asyncio.run(events(b"data: a\n\nda", b"ta: b\n\n: comment\n\n", b"data: c\n", b"\n")),
                         [b"a", b"b", b"c"])


class FleetTest(unittest.TestCase):
    def test_every_turn_is_answered_whichever_router_chooses(self):
        answers = set()
        for router in fleet.OURS:
            report = run("--replicas", "2", "--router", router)
            self.assertEqual((report["lost"], report["retries"]), (0, 0), report)
            self.assertGreater(report["hit_rate"], 0.2, report)
            self.assertGreater(report["ttft_ms"]["p50"], 0, report)
            answers.add((report["answers"], report["answer_tokens"]))
        self.assertEqual(len(answers), 1)

    def test_when_a_server_dies_its_answers_are_lost_or_asked_for_again(self):
        # Seeds and times are those of a trace in which the first server is at work when it dies.
        flags = ("--replicas", "2", "--router", "round-robin", "--kill-after", "8", "--rate", "2")
        self.assertGreater(run(*flags)["lost"], 0)
        again = run(*flags, "--retries", "1")
        self.assertEqual(again["lost"], 0, again)
        self.assertGreater(again["retries"], 0)

    def test_a_router_that_is_not_installed_is_named(self):
        if (pathlib.Path(sys.executable).parent / "vllm-router").exists():
            self.skipTest("vllm-router is installed beside this Python")
        result = subprocess.run([sys.executable, "-B", ROOT / "tools/fleet.py", "--router", "vllm-router"],
                                capture_output=True, text=True, env={"PATH": "/nonexistent"}, timeout=120)
        self.assertEqual(result.returncode, 1)
        self.assertIn("vllm-router is not installed", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
