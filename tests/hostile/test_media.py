"""Pictures, sounds and videos that are damaged, cut off, or not what they say."""

import asyncio
import base64
import pathlib

from target import MEGABYTE, check_refusal, in_groups, rounds

CHAT = "/v1/chat/completions"
FILES = pathlib.Path(__file__).resolve().parents[1] / "data" / "media"


def damage(draw, data):
    data = bytearray(data)
    kind = draw.randrange(4)
    if kind == 0:
        return bytes(data[:draw.randrange(len(data) + 1)])
    for _ in range(draw.choice([1, 3, 30])):
        place = draw.randrange(min(len(data), 120) if kind == 1 else len(data))
        data[place] = draw.choice([0, 0xFF, draw.randrange(256)])
    if kind == 3:
        place = draw.randrange(len(data))
        data[place:place] = draw.randbytes(draw.randrange(200))
    return bytes(data)


def random_part(draw, files):
    data = base64.b64encode(damage(draw, draw.choice(files))).decode()
    if draw.random() < 0.1:
        data = data[:draw.randrange(len(data) + 1)] + draw.choice(["%", "=", "\n", "é"])
    uri = f"data:{draw.choice(['image/jpeg', 'image/png', 'audio/wav', 'x/y', ''])};base64,{data}"
    return draw.choice([
        {"type": "image_url", "image_url": {"url": uri, "detail": draw.choice(["low", "high", "auto"])}},
        {"type": "input_audio", "input_audio": {"data": data, "format": draw.choice(["wav", "mp3", "flac"])}},
        {"type": "audio_url", "audio_url": {"url": uri}},
        {"type": "video", "video": [uri] * draw.choice([1, 2, 40]), "fps": draw.choice([1e-300, 1, 1e300])},
        {"type": "image_url", "image_url": {"url": draw.choice(["file:///etc/passwd", "http://127.0.0.1:1/x", "ftp://x", "data:,x"])}},
    ])


def test_damaged_media(start, seeing_checkpoint):
    target = start("--max-num-seqs", "8", model=seeing_checkpoint)
    files = [path.read_bytes() for path in sorted(FILES.iterdir())]

    async def send(part):
        body = {"max_tokens": 1, "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]}
        status, answer = await target.ask(body, CHAT)
        assert status in (200, 400, 413), (part["type"], status, answer)
        if status != 200:
            check_refusal(answer)
        return status

    before = target.resident()
    for draw in rounds("media"):
        async def play():
            return await in_groups((send(random_part(draw, files)) for _ in range(250)), 8)

        statuses = asyncio.run(play())
        assert statuses.count(400) > 50 and statuses.count(200) > 10, statuses
        target.check()
    assert target.resident() < before + 256 * MEGABYTE
