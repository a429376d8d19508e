"""The package on a GPU; skipped, with the reason, where there is none or the build has no CUDA part."""

import asyncio
import pathlib
import subprocess

import pytest
from lapidary import LLM, AsyncLLM, SamplingParams
from seeing_checkpoint import make_seeing_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=None)
SMALL = {"device": "cuda", "max_model_len": 1024, "max_num_seqs": 16, "gpu_memory_utilization": 0.3,
         "kv_cache_memory_bytes": 64 << 20}


@pytest.fixture(scope="module", autouse=True)
def needs_gpu():
    try:
        LLM(**SMALL).close()
    except ValueError as error:
        if "no CUDA part" in str(error) or "no usable GPU" in str(error):
            pytest.skip(str(error))
        raise


def used_mib():
    """Memory of the GPU that anybody holds."""
    output = subprocess.run(["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                            check=True, capture_output=True, text=True).stdout
    return int(output)


def test_two_models_share_a_gpu(question):
    with LLM(**SMALL) as one, LLM(**SMALL, speculative_config=False) as two:
        assert one.device == two.device == "cuda"
        for _ in range(2):
            for llm in (one, two):
                assert llm.chat([question] * 4, GREEDY, use_tqdm=False)[3].outputs[0].text == "48 + 17 = 65"


def test_answers_are_streamed_and_cancelled(question):
    async def run():
        llm = AsyncLLM(**SMALL)
        async for _ in llm.generate("Once", SamplingParams(temperature=0, ignore_eos=True, max_tokens=None)):
            break
        async for output in llm.chat(question, GREEDY):
            pass
        llm.close()
        return output.outputs[0].text

    assert asyncio.run(run()) == "48 + 17 = 65"


def test_pictures_are_taken_as_on_the_cpu(program, tmp_path):
    checkpoint = make_seeing_checkpoint(program, tmp_path, head_dim=256, global_head_dim=512, hidden_size=128,
                                        intermediate_size=256)
    picture = {"type": "image", "image": pathlib.Path(__file__).resolve().parents[1] / "data" / "media" / "palette.png"}
    answers = []
    for device in ("cpu", "cuda"):
        with LLM(checkpoint, **SMALL | {"device": device}) as llm:
            answers += llm.chat([{"role": "user", "content": [picture]}], SamplingParams(temperature=0, max_tokens=8),
                                use_tqdm=False)
    assert answers[0].prompt_token_ids == answers[1].prompt_token_ids
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [8, 8]


def test_closing_frees_the_memory_of_the_gpu(question):
    def cycle():
        with LLM(**SMALL) as llm:
            llm.chat(question, GREEDY, use_tqdm=False)
            return used_mib()

    open_mib = cycle()
    once = used_mib()  # The driver's context stays with the process.
    assert open_mib - once >= 64
    for _ in range(3):
        cycle()
    assert used_mib() - once <= 4
