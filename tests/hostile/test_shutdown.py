"""SIGTERM while work is under way that would take far longer than clients are given."""

import asyncio
import signal

from media_files import large_jpeg
from target import check_refusal

CHAT = "/v1/chat/completions"


def chat(**fields):
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64, **fields}


def long_pattern(number):
    """Masks of many seconds."""
    return chat(structured_outputs={"regex": "".join(f"[{chr(97 + part % 26)}{chr(65 + part % 26)}]*"
                                                     for part in range(8000 - number))})


def slow_schema(number):
    """Takes as long to compile: which of seven patterns a key fits."""
    patterns = {f"^.*{chr(97 + key)}.{{{8 + number}}}{chr(98 + key)}.*$": {"type": "integer"} for key in range(7)}
    return chat(response_format={"type": "json_schema", "json_schema": {
        "name": "s", "schema": {"type": "object", "patternProperties": patterns}}})


def many_pixels(number):
    frames = [large_jpeg(8192, 1, 10 * number + frame) for frame in range(4)]
    return chat(messages=[{"role": "user", "content": [{"type": "video", "video": frames}]}])


def test_what_runs_is_given_up(start, seeing_checkpoint):
    target = start("--shutdown-timeout", "0.3", "--max-model-len", "2048", model=seeing_checkpoint)

    async def play():
        bodies = [make(number) for make in (long_pattern, slow_schema, many_pixels) for number in range(2)]
        under_way = [asyncio.create_task(target.ask(body, CHAT)) for body in bodies]
        while target.metric("num_requests_running") < 2 or target.metric("mm_requests") < 1:  # patterns, media
            await asyncio.sleep(0.02)
        target.process.send_signal(signal.SIGTERM)
        return await asyncio.gather(*under_way)

    for status, answer in asyncio.run(play()):
        # Nothing of it came to an end, be it an answer or a limit of its own.
        assert status == 503, answer
        check_refusal(answer)
        assert answer["error"]["code"] == "shutting_down", answer
    assert target.stop() == 0, "".join(target.log[-20:])
    assert any(line.endswith("I stopped\n") for line in target.log), target.log[-5:]
