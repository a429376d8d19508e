"""The same request gives the same tokens through the package, the command line and the server."""

import json
import pathlib
import subprocess

import httpx
import lapidary
import pytest
from server_process import ServerProcess

MODEL = pathlib.Path(lapidary.__file__).parent / "models" / "pebble-e"
SETTINGS = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 11}


def command(program, *flags):
    for name, value in SETTINGS.items():
        flags += ("--" + name.replace("_", "-"), str(value))
    output = subprocess.run([program, "generate", MODEL, *flags, "--max-tokens", "60", "--device", "cpu", "--json"],
                            check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


@pytest.fixture(scope="module")
def server(program):
    server = ServerProcess(program, MODEL, "--device", "cpu")
    yield server
    assert server.stop() == 0


def test_text_is_continued_alike(llm, program, server):
    prompt = "Once upon a time in Pebble Valley"
    params = lapidary.SamplingParams(**SETTINGS, max_tokens=60, ignore_eos=True)
    ours = llm.generate(["Some other prompt", prompt], params)[1].outputs[0]
    assert ours.token_ids == command(program, "--prompt", prompt, "--ignore-eos")["output_ids"]
    body = {**SETTINGS, "prompt": prompt, "max_tokens": 60, "ignore_eos": True}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["text"] == ours.text


@pytest.mark.parametrize("thinks", [False, True])
def test_a_conversation_is_answered_alike(llm, program, server, thinks):
    text = "Tell me about the valley."
    messages = [{"role": "user", "content": text}]
    params = lapidary.SamplingParams(**SETTINGS, max_tokens=60)
    kwargs = {"enable_thinking": thinks}
    ours = llm.chat(messages, params, chat_template_kwargs=kwargs)[0].outputs[0]
    assert ours.token_ids == command(program, "--chat", text, *(["--think"] if thinks else []))["output_ids"]
    body = {**SETTINGS, "messages": messages, "max_tokens": 60, "chat_template_kwargs": kwargs}
    choice = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()["choices"][0]
    assert (choice["message"]["content"] or "") == ours.text
    assert (choice["message"].get("reasoning") or choice["message"].get("reasoning_content") or "") == ours.reasoning
    assert choice["finish_reason"] == ours.finish_reason
