"""Models by their names, in the commands that run them."""

import json
import os
import pathlib
import pty
import subprocess
import urllib.request

from server_process import ServerProcess

REPO = "google/gemma-4-E2B-it"
GGUF = "google/gemma-4-E2B-it-qat-q4_0-gguf"
QUESTION = ("--chat", "What is 48 + 17?", "--temperature", "0", "--max-tokens", "20")
RIGHT = "48 + 17 = 65"


def test_a_name_is_fetched_and_runs(hub, machine, pebble):
    hub.add(REPO, pebble)
    for name in (REPO, "e2b", f"{REPO}@main"):
        assert machine.run("generate", name, *QUESTION, check=True).stdout.strip() == RIGHT
    assert len([path for path in hub.paths("storage") if "model.safetensors" in path]) == 1
    # And without the Hub.
    assert machine.run("generate", "e2b", *QUESTION, check=True, HF_HUB_OFFLINE="1").stdout.strip() == RIGHT


def test_llama_cpps_flag_takes_a_gguf_file(hub, machine, pebble, tmp_path):
    machine.run("convert", "pebble-e", "--to", "q8_0", "--out", tmp_path / "x.gguf", check=True)
    hub.add(GGUF, {"gemma-4-E2B_q4_0-it.gguf": (tmp_path / "x.gguf").read_bytes(),
                   "config.json": pebble["config.json"]})
    for arguments in (("-hf", GGUF), ("-hf", GGUF + ":q4_0"), ("e2b:q4_0",)):
        assert machine.run("generate", *arguments, *QUESTION, check=True).stdout.strip() == RIGHT
    assert "name one model" in machine.refusal("generate", "e2b", "-hf", GGUF, *QUESTION)
    assert "must be OWNER/NAME" in machine.refusal("generate", "-hf", "gemma", *QUESTION)
    hub.add("google/gemma-4-E4B-it-qat-q4_0-gguf", {"x_q4_0-it.gguf": b"GGUF"})
    assert "says what it is once it is here" in machine.refusal("plan", "e4b:q4_0", "--memory", "16GB")


def test_serve_answers_to_the_name_it_was_given(hub, machine, pebble, monkeypatch):
    hub.add(REPO, pebble)
    for key in ("HF_HOME", "HF_ENDPOINT", "HOME"):
        monkeypatch.setenv(key, machine.environment[key])
    server = ServerProcess(machine.program, "e2b")
    try:
        with urllib.request.urlopen(server.url + "/v1/models") as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == ["e2b", REPO]
    finally:
        server.stop()
    [snapshot] = (machine.folder(REPO) / "snapshots").iterdir()
    server = ServerProcess(machine.program, str(snapshot))
    try:
        with urllib.request.urlopen(server.url + "/v1/models") as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == [REPO]
    finally:
        server.stop()


def test_a_name_after_served_names_is_the_model(hub, machine):
    message = machine.refusal("serve", "--served-model-name", "a", "b", "google/none")
    assert "shows no model google/none" in message


def test_what_needs_no_weights_fetches_none(hub, machine, pebble):
    hub.add(REPO, pebble)
    plan = machine.run("plan", REPO, "--memory", "80GB", "--json", check=True).stdout
    assert json.loads(plan)
    assert machine.run("tokenize", REPO, "--text", "Hello", check=True).stdout
    assert machine.run("inspect", REPO, check=True).stdout.startswith(str(machine.folder(REPO)))
    assert not any("model.safetensors" in path for path in hub.paths())


def test_what_is_here_goes_before_the_hub(hub, machine, pebble, tmp_path):
    here = tmp_path / "google" / "gemma-4-E2B-it"
    here.mkdir(parents=True)
    for name, data in pebble.items():
        (here / name).write_bytes(data)
    done = subprocess.run([machine.program, "generate", REPO, *QUESTION], cwd=tmp_path, env=machine.environment,
                          capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == RIGHT and hub.paths() == []
    assert machine.run("generate", "pebble-e", *QUESTION, check=True).stdout.strip() == RIGHT
    assert machine.run("inspect", "e2b", check=True).stdout.startswith("e2b: ")
    assert hub.paths() == []


def test_a_name_without_weights_is_a_sentence(hub, machine):
    message = machine.refusal("serve", "e2b", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set, and e2b (google/gemma-4-E2B-it) is not in the cache" in message
    assert "shows no model google/gemma-4-E2B-it" in machine.refusal("chat", "e2b")
    message = machine.refusal("serve", "models/mine")
    assert "shows no model models/mine: it is a wrong name, a path that is not here" in message


def test_chat_on_a_terminal_says_what_it_runs_and_what_would_fit(machine):
    main, other = pty.openpty()
    process = subprocess.Popen([machine.program, "chat"], stdin=other, stdout=other, stderr=other,
                               env=machine.environment | {"TERM": "dumb"})
    os.close(other)
    said = b""
    while b"lists the commands" not in said:
        said += os.read(main, 4096)
    os.write(main, b"/exit\n")
    process.wait(60)
    os.close(main)
    lines = [line for line in said.decode().splitlines() if "toy" in line]
    assert len(lines) == 1 and "pebble-e is a toy of 7 million parameters" in lines[0]
    # On a machine with some memory, a model that fits it.
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory > 16e9 and not pathlib.Path("/sys/fs/cgroup/memory.max").exists():
        assert "; try: " in lines[0] and " GB" in lines[0]
