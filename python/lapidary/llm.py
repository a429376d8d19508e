"""Batches of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _core, keywords
from .engine import Engine, Messages, conversation, is_one_prompt, params_for_each
from .outputs import RequestOutput, _completion, _prompt_logprobs
from .prompts import Prompt
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy.typing


class LLM(Engine):
    """A loaded model that answers batches of prompts, as vLLM's class of that name.

    Every method may be called from many threads at once; their requests run together. Ctrl-C ends a batch and leaves
    the model usable. In a process forked from the one that loaded the model every call raises; load it there, or let
    ``multiprocessing`` spawn.
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: Sequence[int] | None = None,
        **vllm: Any,
    ) -> list[RequestOutput]:
        """Goes on with each prompt.

        Args:
            prompts: One or several: text, in which special tokens may be spelled out, or token ids used as they stand;
                with images or audio as a TextPrompt or a TokensPrompt.
            sampling_params: For all prompts, or one for each; None: the checkpoint's own, and 16 tokens.
            use_tqdm: Show a progress bar, if tqdm is there; or what makes one.
            priority: Of each prompt: the lowest is served first. None: all have 0.
            **vllm: Further keywords of vLLM's method, such as lora_request=None; see LLM.

        Returns:
            The outputs in the order of the prompts.
        """
        given: list[Any] = [prompts] if is_one_prompt(prompts) else list(prompts)
        keywords.check("generate()", vllm, keywords.GENERATE, LLM.generate.__kwdefaults__ or ())
        params = params_for_each(sampling_params, len(given), SamplingParams())
        if priority is not None and len(priority) != len(given):
            raise ValueError(f"there are {len(given)} prompts but {len(priority)} priorities")
        return self._run([self._encode_prompt(prompt) for prompt in given], params, use_tqdm, priority)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **vllm: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several.

        Args:
            messages: In the shape of OpenAI's chat API; see Messages for images and audio.
            sampling_params: As for generate; None: the checkpoint's own, and answers run to their ends.
            continue_final_message: The last message is the beginning of the answer.
            tools: What the model may call, in OpenAI's shape; calls are in the outputs' ``tool_calls``.
            tool_choice: "auto", "none", "required" or one function, as in OpenAI's API.
            chat_template_kwargs: Further variables of the template, such as {"enable_thinking": True}.
            mm_processor_kwargs: {"max_soft_tokens": 560}: most tokens of an image; 70, 140, 280 (the default), 560 or
                1120.
            **vllm: Further keywords of vLLM's method, such as lora_request=None; see LLM.
        """
        keywords.check("chat()", vllm, keywords.CHAT, LLM.chat.__kwdefaults__ or ())
        is_one = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations: list[Any] = [messages] if is_one else list(messages)
        params = params_for_each(sampling_params, len(conversations), SamplingParams(max_tokens=None))
        prompts: list[tuple[str | None, _core.Prompt]] = []
        for one in conversations:
            fields = conversation(
                one,
                tools,
                tool_choice,
                chat_template_kwargs,
                add_generation_prompt,
                mm_processor_kwargs,
                continue_final_message,
            )
            prompts.append((None, self._encode_chat(fields)))
        return self._run(prompts, params, use_tqdm)

    def logits(self, ids: Sequence[int]) -> numpy.typing.NDArray[numpy.float32]:
        """What the model expects behind each token: float32 [tokens, vocabulary], before any sampling.

        The array owns the engine's memory; ``torch.from_dlpack`` takes it without a copy. Waits until nothing else
        runs; what comes meanwhile waits too.
        """
        return self._session.logits(list(ids))

    def _run(
        self,
        prompts: list[tuple[str | None, _core.Prompt]],
        params: list[SamplingParams],
        use_tqdm: bool | Callable[..., Any],
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        requests: dict[tuple[int, int], _core.Request] = {}
        jobs, ids = [], []
        for index, ((_, prompt), each) in enumerate(zip(prompts, params)):
            request_id, seed = self._next_request(each.n)
            ids.append(request_id)
            key = (id(each), priority[index] if priority else 0)
            if key not in requests:
                requests[key] = each._to_core()
                requests[key].priority = key[1]
            jobs.append((prompt, requests[key], seed))
        bar = _progress_bar(use_tqdm, len(jobs))
        try:
            results = self._session.generate(jobs, bar and (lambda num_done: bar.update(num_done - bar.n)))
        finally:
            if bar is not None:
                bar.close()
        token_text = self._token_text
        outputs = []
        for request_id, (text, prompt), (answers, prompt_logprobs) in zip(ids, prompts, results):
            completions = [_completion(index, answer, token_text) for index, answer in enumerate(answers)]
            logprobs = _prompt_logprobs(prompt_logprobs, token_text)
            num_cached = answers[0][-1]
            outputs.append(RequestOutput(request_id, text, prompt.ids, logprobs, completions, True, num_cached))
        return outputs


def _progress_bar(use_tqdm: bool | Callable[..., Any], num_prompts: int) -> Any:
    if not use_tqdm or num_prompts == 0:
        return None
    if callable(use_tqdm):
        return use_tqdm(total=num_prompts, desc="Processed prompts")
    try:
        from tqdm.auto import tqdm  # Knows notebooks; imported here because it is slow.
    except ImportError:
        return None
    return tqdm(total=num_prompts, desc="Processed prompts", dynamic_ncols=True)
