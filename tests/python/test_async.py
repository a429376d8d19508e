"""Answers as they come, in an asyncio loop."""

import asyncio

import pytest
from lapidary import AsyncLLM, Error, RequestOutputKind, SamplingParams


@pytest.fixture(scope="module")
def llm():
    llm = AsyncLLM(device="cpu", max_model_len=1024)
    yield llm
    llm.close()


def endless(**fields):
    return SamplingParams(temperature=0, ignore_eos=True, **fields)


async def collect(stream):
    return [output async for output in stream]


def test_outputs_grow_until_the_answer_is_whole(llm, question):
    outputs = asyncio.run(collect(llm.chat(question, SamplingParams(temperature=0, max_tokens=None))))
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))
    assert texts[-1] == "48 + 17 = 65" and len(outputs) > 1
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_deltas_joined_and_the_final_one_are_the_same_answer(llm):
    async def run(kind):
        return await collect(llm.generate("Once", endless(max_tokens=30, n=2, output_kind=kind, logprobs=0)))

    deltas = asyncio.run(run(RequestOutputKind.DELTA))
    [final] = asyncio.run(run(RequestOutputKind.FINAL_ONLY))
    for index in (0, 1):
        parts = [one for output in deltas for one in output.outputs if one.index == index]
        assert "".join(part.text for part in parts) == final.outputs[index].text
        assert sum((part.token_ids for part in parts), []) == final.outputs[index].token_ids
        assert len(final.outputs[index].logprobs) == 30


def test_many_run_together(llm, question):
    async def run():
        streams = [llm.chat([{"role": "user", "content": f"What is {n} + 1?"}],
                            SamplingParams(temperature=0, max_tokens=None)) for n in range(12)]
        return await asyncio.gather(*map(collect, streams))

    answers = [outputs[-1].outputs[0].text for outputs in asyncio.run(run())]
    assert answers == [f"{n} + 1 = {n + 1}" for n in range(12)]


def test_leaving_the_loop_ends_the_request(llm, question):
    async def run():
        stream = llm.generate("Once", endless(max_tokens=None))
        async for output in stream:
            break
        await stream.aclose()
        task = asyncio.create_task(collect(llm.generate("Once", endless(max_tokens=None))))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Both would run for a thousand tokens; this one does not wait for them.
        return await collect(llm.chat(question, SamplingParams(temperature=0, max_tokens=None)))

    assert asyncio.run(run())[-1].outputs[0].text == "48 + 17 = 65"


def test_bad_input_is_a_value_error(llm):
    with pytest.raises(ValueError, match="top_p"):
        asyncio.run(collect(llm.generate("Once", SamplingParams(top_p=7))))


def test_closing_tells_who_waits():
    async def run():
        llm = AsyncLLM(device="cpu", max_model_len=1024)
        task = asyncio.create_task(collect(llm.generate("Once", endless(max_tokens=None))))
        await asyncio.sleep(0.05)
        llm.close()
        with pytest.raises(Error, match="closed"):
            await task

    asyncio.run(run())
