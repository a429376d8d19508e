"""Answers as they are generated, for programs that run an asyncio loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _core, keywords
from .engine import Engine, Messages, conversation
from .outputs import RequestOutput, _append, _completion, _copy, _prompt_logprobs
from .prompts import Prompt
from .sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from ._core import _Answer, _Update


class AsyncLLM(Engine):
    """A loaded model whose answers are read as they come, as vLLM's class of that name.

        async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=100)):
            print(output.outputs[0].text)

    Leaving the loop, or cancelling the task that runs it, ends the request. All requests run together.
    """

    _readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reader] | None = None

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        **vllm: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Goes on with a prompt; yields all of the answer so far, or as ``sampling_params.output_kind`` says.

        Of all prompts that wait, the one with the lowest ``priority`` is served first.
        """
        keywords.check("generate()", vllm, keywords.GENERATE, AsyncLLM.generate.__kwdefaults__ or ())
        text, encoded = self._encode_prompt(prompt)
        return self._run(text, encoded, sampling_params or SamplingParams(), request_id, priority)

    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **vllm: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Answers a conversation; see LLM.chat.

        Images and audio are encoded before it returns, which takes its time: with such messages, call it by
        ``await asyncio.to_thread(llm.chat, messages)``.
        """
        keywords.check("chat()", vllm, keywords.CHAT, AsyncLLM.chat.__kwdefaults__ or ())
        fields = conversation(
            messages, tools, tool_choice, chat_template_kwargs, mm_processor_kwargs=mm_processor_kwargs
        )
        encoded = self._encode_chat(fields)
        return self._run(None, encoded, sampling_params or SamplingParams(max_tokens=None), request_id)

    def close(self) -> None:
        super().close()
        self._readers = None  # Each goes when its loop has told who waits.

    close.__doc__ = Engine.close.__doc__

    def shutdown(self) -> None:
        """As close(); vLLM's name for it."""
        self.close()

    async def _run(
        self,
        text: str | None,
        prompt: _core.Prompt,
        params: SamplingParams,
        request_id: str | None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        loop = asyncio.get_running_loop()
        if self._readers is None:
            self._readers = weakref.WeakKeyDictionary()
        reader = self._readers.get(loop)
        if reader is None:
            reader = self._readers[loop] = _Reader(self._session, loop)
        own_id, seed = self._next_request(params.n)
        request = params._to_core()
        request.priority = priority
        number, updates = reader.start(prompt, request, seed)
        output = RequestOutput(request_id or own_id, text, prompt.ids, None, [], False)
        kind = params.output_kind
        try:
            while not output.finished:
                self._take(await updates.get(), output, params)
                # What else has come meanwhile belongs to the same answer.
                while not updates.empty():
                    self._take(updates.get_nowait(), output, params)
                if kind is not RequestOutputKind.FINAL_ONLY or output.finished:
                    yield _snapshot(output)
                if kind is RequestOutputKind.DELTA:
                    output.outputs = []
        finally:
            reader.end(number, is_finished=output.finished)

    def _take(self, update: _Update | Exception, output: RequestOutput, params: SamplingParams) -> None:
        if isinstance(update, Exception):
            raise update
        _, index, answer, prompt_logprobs, is_last, error, is_device_error = update
        if error is not None:
            raise (_core.DeviceError if is_device_error else _core.Error)(error)
        token_text = self._token_text
        news = _completion(index, answer if params.logprobs is not None else _without_logprobs(answer), token_text)
        known = next((each for each in output.outputs if each.index == index), None)
        if known is None:
            output.outputs = sorted([*output.outputs, news], key=lambda each: each.index)
        else:
            _append(known, news)
        if params.prompt_logprobs is not None and prompt_logprobs:
            logprobs = _prompt_logprobs(prompt_logprobs, token_text) or []
            output.prompt_logprobs = logprobs if output.prompt_logprobs is None else output.prompt_logprobs + logprobs[1:]
        if index == 0 and news.finished():
            output.num_cached_tokens = answer[-1]
        output.finished = is_last


class _Reader:
    """The way from the engine's thread to one loop: a file descriptor that the loop watches."""

    def __init__(self, session: _core.Session, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = session.open()
        self._queues: dict[int, asyncio.Queue[Any]] = {}
        self._fd = self._stream.fd
        self._loop = weakref.ref(loop)
        loop.add_reader(self._fd, self._deliver)

    def start(self, prompt: _core.Prompt, request: _core.Request, seed: int) -> tuple[int, asyncio.Queue[Any]]:
        number = self._stream.add(prompt, request, seed)
        queue = self._queues[number] = asyncio.Queue()
        return number, queue

    def end(self, number: int, is_finished: bool) -> None:
        self._queues.pop(number, None)
        if not is_finished:
            self._stream.cancel(number)

    def _deliver(self) -> None:
        try:
            updates = self._stream.take()
        except Exception as error:  # The session was closed: whoever waits is told, and nobody asks again.
            loop = self._loop()
            if loop is not None:
                loop.remove_reader(self._fd)
            for queue in self._queues.values():
                queue.put_nowait(error)
            return
        for update in updates:
            if update[0] in self._queues:  # Else nobody waits for it any more.
                self._queues[update[0]].put_nowait(update)


def _without_logprobs(answer: _Answer) -> _Answer:
    return (*answer[:4], None, *answer[5:])


def _snapshot(output: RequestOutput) -> RequestOutput:
    """What the caller may keep while the answer grows."""
    return RequestOutput(
        output.request_id,
        output.prompt,
        output.prompt_token_ids,
        output.prompt_logprobs,
        [_copy(each) for each in output.outputs],
        output.finished,
        output.num_cached_tokens,
    )
