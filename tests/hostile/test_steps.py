"""Steps that fail: weights that are not numbers, batches that are more than there is room for."""

import asyncio
import json
import shutil
import struct

import pytest
from raw_client import ask, text_of
from server_process import ServerProcess
from target import check_refusal, in_groups, rounds


def break_weights(draw, directory, value):
    """Puts one value in place of some others, in the tensors of the file."""
    (path,) = directory.glob("*.safetensors")
    data = bytearray(path.read_bytes())
    header_bytes = struct.unpack("<Q", data[:8])[0]
    tensors = json.loads(data[8:8 + header_bytes])
    tensors.pop("__metadata__", None)
    for name in draw.sample(sorted(tensors), 3):
        begin, end = tensors[name]["data_offsets"]
        size = {"F32": 4, "BF16": 2, "F16": 2}[tensors[name]["dtype"]]
        place = 8 + header_bytes + begin + draw.randrange((end - begin) // size) * size
        data[place:place + size] = struct.pack("<f", value)[4 - size:]
    path.write_bytes(data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38], ids=["nan", "inf", "large"])
def test_weights_that_are_not_numbers(program, checkpoint, tmp_path, value):
    for number, draw in enumerate(rounds(f"weights {value}")):
        broken = tmp_path / f"broken{number}"
        shutil.copytree(checkpoint, broken)
        break_weights(draw, broken, value)
        try:
            server = ServerProcess(program, str(broken), "--threads", "1", "--max-model-len", "256")
        except AssertionError as error:  # The first answer already shows it: a sentence, no signal.
            assert "does not run" in str(error), error
            continue
        try:
            async def send(body):
                status, answer = await asyncio.wait_for(ask(server, body), 60)
                assert status in (200, 500), answer
                if status == 500:
                    check_refusal(answer)

            bodies = [{"prompt": [draw.randrange(10, 250) for _ in range(20)], "max_tokens": 20, "n": draw.choice([1, 3]),
                       "temperature": draw.choice([0, 1]), "logprobs": draw.choice([None, 5])} for _ in range(12)]

            async def play():
                await in_groups(map(send, bodies), 4)

            asyncio.run(play())
            assert server.process.poll() is None
            server.wait_until_idle()
        finally:
            assert server.stop() == 0, "".join(server.log[-20:])


def test_more_than_fits(start):
    """Everything at once in a pool and a queue that are far too small: answers are those alone, the rest is told so."""
    target = start("--max-model-len", "256", "--kv-cache-memory-bytes", "8000000", "--max-queue", "16", "--check-kv",
                   "--max-num-batched-tokens", "32")

    async def send(number, alone):
        body = {"prompt": [number + 10] * (number % 200 + 1), "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        status, answer = await target.ask({**body, "n": 1 if alone else number % 3 + 1})
        if status == 503 and not alone:
            assert answer["error"]["code"] == "queue_full", answer
            return None
        assert status == 200, answer
        return text_of({"choices": answer["choices"][:1]})

    for draw in rounds("pool"):
        numbers = [draw.randrange(240) for _ in range(40)]

        async def play():
            expected = [await send(number, True) for number in numbers[:8]]
            together = await asyncio.gather(*(send(number, False) for number in numbers))
            assert all(text in (None, right) for text, right in zip(together, expected))
            assert any(together)

        asyncio.run(play())
        target.check()
