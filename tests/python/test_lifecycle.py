"""Interrupts, threads, processes, memory."""

import ast
import asyncio
import ctypes
import enum
import gc
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import lapidary
import pytest
from lapidary import LLM, AsyncLLM, Error, SamplingParams

ENDLESS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=None)
GREEDY = SamplingParams(temperature=0, max_tokens=None)


def test_import_is_quick_and_brings_little(package_dir):
    # Time of the CPU: other tests may run beside.
    program = ("import sys, time; start = time.process_time(); import lapidary; print(time.process_time() - start);"
               "print('numpy' in sys.modules, 'tqdm' in sys.modules)")
    runs = [subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": package_dir},
                           check=True, capture_output=True, text=True).stdout.split() for _ in range(3)]
    assert min(float(seconds) for seconds, *_ in runs) < 0.2
    assert runs[0][1:] == ["False", "False"]


def test_the_extension_is_what_its_stub_says(package_dir):
    folder = pathlib.Path(package_dir) / "lapidary"
    assert (folder / "py.typed").exists()

    def names(body):
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                yield node.name, node
            elif isinstance(node, ast.AnnAssign) or isinstance(node, ast.Assign):
                yield ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]), node

    def public(owner):
        return {name for name in vars(owner) if not name.startswith("_")}

    stub = {name: node for name, node in names(ast.parse((folder / "_core.pyi").read_text()).body)
            if not name.startswith("_")}
    assert set(stub) == public(lapidary._core)
    for name, node in stub.items():
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(lapidary._core, name), (Exception, enum.Enum)):
            members = {member for member, _ in names(node.body) if not member.startswith("_")}
            assert members == public(getattr(lapidary._core, name)), name


def test_interrupting_a_batch_leaves_the_model_usable(llm, question):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Once"] * 64, ENDLESS)
    timer.join()
    assert time.monotonic() - began < 30
    assert llm.chat(question, GREEDY)[0].outputs[0].text == "48 + 17 = 65"


def test_an_exception_of_the_progress_bar_ends_the_batch(llm):
    class Bar:
        n = 0

        def __init__(self, **_):
            pass

        def update(self, _):
            raise ZeroDivisionError

        def close(self):
            pass

    with pytest.raises(ZeroDivisionError):
        llm.generate(["Once"] * 4, SamplingParams(max_tokens=4), use_tqdm=Bar)


def test_threads_share_a_model_and_do_not_hold_each_other_up(llm, question):
    answers = [None] * 6

    def ask(index):
        answers[index] = llm.chat(question, GREEDY, use_tqdm=False)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    # The interpreter is free while they wait.
    count = 0
    while any(thread.is_alive() for thread in threads):
        count += 1
        time.sleep(0.001)
    assert answers == ["48 + 17 = 65"] * 6


def test_two_models_in_one_process(llm, question):
    with LLM(device="cpu", max_model_len=512, num_threads=1) as other:
        one, two = (each.chat(question, GREEDY)[0].outputs[0] for each in (llm, other))
    assert one.token_ids == two.token_ids


def in_child(llm, connection):
    try:
        llm.generate("Once")
        connection.send("it ran")
    except Error as error:
        connection.send(str(error))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_refused_with_a_sentence(llm):
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(llm, there))
    child.start()
    assert here.poll(30)
    assert "forked" in here.recv()
    child.join(30)
    assert child.exitcode == 0


def test_what_is_closed_says_so(question):
    llm = LLM(device="cpu", max_model_len=512, num_threads=1)
    problems = []

    def generate():
        try:
            llm.generate("Once", ENDLESS, use_tqdm=False)
        except Error as error:
            problems.append(str(error))

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.1)
    llm.close()
    thread.join(30)
    assert problems == ["the session is closed"]
    llm.close()
    with pytest.raises(Error, match="closed"):
        llm.chat(question)


def test_a_program_may_end_with_a_model_open(package_dir):
    program = """if True:
        import lapidary, asyncio
        llm = lapidary.LLM(device="cpu", max_model_len=256, num_threads=1)
        other = lapidary.AsyncLLM(device="cpu", max_model_len=256, num_threads=1)
        llm.generate("Once", use_tqdm=False)
        async def first():
            async for output in other.generate("Once", lapidary.SamplingParams(max_tokens=None)):
                return
        asyncio.run(first())
    """
    run = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": package_dir},
                         capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


class MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                 "keepcost")]


def held():
    """What the process holds: bytes of malloc, threads, mapped files of models, open files."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallInfo
    info = mallinfo2()
    with open("/proc/self/maps") as maps:
        num_mapped = sum(".safetensors" in line for line in maps)
    return (info.uordblks + info.hblkhd, len(os.listdir("/proc/self/task")), num_mapped, len(os.listdir("/proc/self/fd")))


async def first_token_then_close():
    llm = AsyncLLM(device="cpu", max_model_len=1024, num_threads=2)
    async for _ in llm.generate("Once", ENDLESS):
        break
    llm.close()
    await asyncio.sleep(0.01)  # for the loop to notice


def test_closing_frees_all_memory(question):
    def cycle():
        asyncio.run(first_token_then_close())
        with LLM(device="cpu", max_model_len=1024, num_threads=2) as llm:
            llm.chat([question] * 8, GREEDY, use_tqdm=False)
            llm.logits([2, 3])
            assert held()[0] - before[0] > 1e6
        assert llm._open_session is None

    import numpy  # noqa: F401 (has threads of its own)
    before = held()
    cycle()  # What the process keeps for good: a log, vocabularies of the first use.
    once = held()
    for _ in range(3):
        cycle()
    bytes_held, *counts = held()
    assert counts == list(once[1:]) and counts == list(before[1:])
    assert bytes_held - once[0] < 200_000
