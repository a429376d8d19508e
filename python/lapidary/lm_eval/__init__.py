"""Lapidary for lm-evaluation-harness, without a server.

    python -m lapidary.lm_eval --model lapidary --model_args model=/models/gemma-4-E2B-it --tasks hellaswag

takes the arguments of ``lm_eval`` itself. Releases that look for models of other packages (the entry points
``lm_eval.models``) find it by themselves, and ``lm_eval --model lapidary`` does the same. In a program:

    lm_eval.simple_evaluate(model=lapidary.lm_eval.LapidaryLM("/models/gemma-4-E2B-it"), tasks=["hellaswag"])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from ..llm import LLM
from ..outputs import RequestOutput
from ..sampling_params import SamplingParams

_MAX_GEN_TOKENS = 256


@register_model("lapidary")
class LapidaryLM(TemplateLM):
    """A model of lm-evaluation-harness. Whole lists of requests go to the engine at once: there is no batch size."""

    def __init__(
        self,
        model: str | LLM | None = None,
        pretrained: str | None = None,
        device: str | None = None,
        max_gen_toks: int = _MAX_GEN_TOKENS,
        batch_size: Any = None,
        max_batch_size: Any = None,
        enable_thinking: bool | None = None,
        **options: Any,
    ) -> None:
        """Loads a model.

        Args:
            model: A checkpoint directory, a GGUF file or a loaded LLM; None: the bundled toy model.
            pretrained: The harness's usual name for the same.
            device: As LLM's; "cuda:0", which the harness says when nobody says anything, is "auto".
            max_gen_toks: Most tokens of an answer, where a task says nothing.
            enable_thinking: For the chat template.
            options: As LLM's.
        """
        super().__init__()
        model = model if model is not None else pretrained
        device = "auto" if device in (None, "cuda:0") else device
        self._llm = model if isinstance(model, LLM) else LLM(model, device=device, **options)
        self._max_gen_toks = int(max_gen_toks)
        self._template_kwargs = None if enable_thinking is None else {"enable_thinking": bool(enable_thinking)}

    @property
    def eot_token_id(self) -> int:
        return self._llm.stop_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        return self._llm.bos_token_id

    @property
    def max_length(self) -> int:
        return self._llm.max_model_len

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return self._llm.model.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self._llm.render([{"role": "user", "content": "{}"}]) if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self._llm.render(
            chat_history, chat_template_kwargs=self._template_kwargs, add_generation_prompt=add_generation_prompt
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        # <bos> comes first unless the text spells it.
        return self._llm.encode(string, add_special_tokens is not False)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        prompts = [(context + continuation)[-self.max_length :] for _, context, continuation in requests]
        params = SamplingParams(max_tokens=0, prompt_logprobs=1)
        outputs = self._llm.generate(prompts, params, use_tqdm=not disable_tqdm)
        results = []
        for (key, _, continuation), output in zip(requests, outputs):
            answer = _score(output, len(continuation))
            results.append(answer)
            self.cache_hook.add_partial("loglikelihood", key, answer)
        return results

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        keyed, num_windows = [], []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = [(("", ""), *window) for window in _windows(ids, self.prefix_token_id, self.max_length)]
            keyed.extend(windows)
            num_windows.append(len(windows))
        scores = iter(self._loglikelihood_tokens(keyed, disable_tqdm=disable_tqdm))
        totals = []
        for request, count in zip(requests, num_windows):
            total = sum(next(scores)[0] for _ in range(count))
            totals.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        prompts, params = [], []
        for request in requests:
            context, settings = request.args
            sampling = _sampling(dict(settings), self._max_gen_toks)
            room = max(self.max_length - (sampling.max_tokens or 0), 1)
            prompts.append(self.tok_encode(context)[-room:])
            params.append(sampling)
        outputs = self._llm.generate(prompts, params, use_tqdm=not disable_tqdm)
        texts = [output.outputs[0].text for output in outputs]
        for request, text in zip(requests, texts):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts


def _windows(ids: list[int], prefix_id: int, max_length: int) -> Iterator[tuple[list[int], list[int]]]:
    """Contexts and what follows them: every id once, behind as many others as there is room for."""
    step = max_length - 1
    for begin in range(0, len(ids), step):
        end = min(begin + step, len(ids))
        yield ids[max(end - max_length, 0) : begin] or [prefix_id], ids[begin:end]


def _score(output: RequestOutput, num_tokens: int) -> tuple[float, bool]:
    """The logprob of a prompt's last tokens, and whether each was the most probable."""
    assert output.prompt_logprobs is not None
    total, is_greedy = 0.0, True
    scored = list(zip(output.prompt_token_ids, output.prompt_logprobs))[-num_tokens:] if num_tokens else []
    for token_id, position in scored:
        if position is None:
            continue
        total += position[token_id].logprob
        is_greedy = is_greedy and position[token_id].rank == 1
    return total, is_greedy


def _sampling(settings: dict[str, Any], max_tokens: int) -> SamplingParams:
    until: str | Sequence[str] = settings.pop("until", [])
    max_tokens = int(settings.pop("max_gen_toks", max_tokens))
    temperature = settings.pop("temperature", 0.0) if settings.pop("do_sample", True) else 0.0
    known = {name: settings[name] for name in ("top_p", "top_k", "min_p", "seed") if name in settings}
    stop = [until] if isinstance(until, str) else [text for text in until if text]
    return SamplingParams(temperature=temperature, stop=stop, max_tokens=max_tokens, **known)

