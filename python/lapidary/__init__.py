"""Lapidary: Google's Gemma 4 models on the CPU or an NVIDIA GPU, in the shape of vLLM's offline interface.

    import lapidary

    llm = lapidary.LLM()  # the bundled toy model; or LLM("google/gemma-4-E2B-it"), LLM("/models/gemma-4-E2B-it")
    print(llm.chat([{"role": "user", "content": "Who are you?"}])[0].outputs[0].text)

    with lapidary.Server() as server:  # `lapidary serve` within this process
        print(server.url)

Where it differs from vLLM:

- What a request leaves out (``temperature``, ``top_p``, ``top_k``, ...) is as the checkpoint says
  (``generation_config.json``), also when a ``SamplingParams`` is given; vLLM then takes neutral values.
- Without any ``SamplingParams`` a chat answer runs to its end; vLLM cuts it after 16 tokens.
- The ``text`` of a chat answer has neither thoughts nor tool calls; they are in ``reasoning`` and ``tool_calls``.

Bad input raises ``ValueError``; a failing device raises ``DeviceError``, and then only a new ``LLM`` helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._core import BusyError, DeviceError, Error, __version__, set_log_level
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput, ToolCall
from .prompts import TextPrompt, TokensPrompt
from .sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from .server import Server

if TYPE_CHECKING:
    from .async_llm import AsyncLLM

__all__ = [
    "AsyncLLM",
    "BusyError",
    "CompletionOutput",
    "DeviceError",
    "Error",
    "LLM",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "Server",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "ToolCall",
    "__version__",
    "set_log_level",
]


def __getattr__(name: str) -> Any:
    # asyncio takes as long to import as all the rest.
    if name == "AsyncLLM":
        from .async_llm import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module 'lapidary' has no attribute '{name}'")
