"""What LLM and AsyncLLM share: a loaded model, and how prompts and parameters become requests."""

from __future__ import annotations

import atexit
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from . import _core
from .media import with_inline_media
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Self

Prompt = Union[str, Sequence[int], Mapping[str, Any]]
"""Text to continue, token ids used as they stand, or {"prompt": text} / {"prompt_token_ids": ids}."""
Messages = Sequence[Mapping[str, Any]]
"""A conversation in the shape of OpenAI's chat API. Beside its ``image_url`` and ``input_audio`` (with ``data:`` and
``file:`` addresses) a part of a message may be {"type": "image", "image": a path, bytes or one of PIL's images} or
{"type": "audio", "audio": a path or bytes}."""

_DEFAULT_MODEL = "pebble-e"
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def bundled_model() -> str:
    """The toy model that comes with the package."""
    variable = os.environ.get("LAPIDARY_MODELS_DIR")
    directory = Path(variable) if variable else Path(__file__).parent / "models"
    model = directory / _DEFAULT_MODEL
    if not model.is_dir():
        raise ValueError(f"no model was named and the bundled one is missing: there is no {model}")
    return str(model)


class Engine:
    """A loaded model. Every method may be called from many threads at once."""

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        tokenizer: str | os.PathLike[str] | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        limit_mm_per_prompt: Mapping[str, int] | None = None,
        enable_prefix_caching: bool = True,
        speculative_config: Mapping[str, Any] | bool | None = None,
        seed: int = 0,
        load_format: str = "auto",
        gpu_memory_utilization: float = 0.9,
        enforce_eager: bool = False,
        batch_invariant: bool = False,
        num_threads: int | None = None,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        trust_remote_code: bool = False,
    ) -> None:
        """Loads a model.

        Args:
            model: A checkpoint directory or a GGUF file; None: the bundled toy model.
            device: "auto", "cpu" or "cuda".
            tokenizer: Where tokenizer and chat template are, if not with the model.
            max_model_len: Most tokens of a prompt and its answer.
            max_num_seqs: Most answers that are generated at once.
            max_num_batched_tokens: Most tokens of one step.
            kv_cache_memory_bytes: Memory for keys and values.
            limit_mm_per_prompt: Most images, audio files and videos of a conversation; None: {"image": 4, "audio": 1,
                "video": 1}, where the model takes any. Of what is not named, none.
            enable_prefix_caching: Keep what prompts have in common.
            speculative_config: {"model": directory, "num_speculative_tokens": 4} names the assistant that drafts; None:
                the one beside the model, if there is one; {"method": "ngram", "prompt_lookup_max": 4}: text that
                repeats is drafted, on a CPU; False: no drafts. Drafting changes speed and nothing else.
            seed: What the seeds of requests without one are derived from.
            load_format: "auto", or "dummy" for random weights.
            gpu_memory_utilization: Share of the GPU's memory that this LLM may use, whoever else is there.
            enforce_eager: Launch kernels one by one, without graphs.
            batch_invariant: On a GPU, bitwise the same answers whatever else runs. The CPU always gives those.
            num_threads: Of the CPU; None: one per core.
            dtype: "auto" or "bfloat16": weights are as the checkpoint has them.
            tensor_parallel_size: Ranks that share the model. On the CPU they take turns, which is no faster; on a GPU
                there is one.
            trust_remote_code: Changes nothing: checkpoints are data.
        """
        if dtype not in ("auto", "bfloat16"):
            raise ValueError(f"dtype '{dtype}' is not there; it must be auto or bfloat16")
        self.model = os.fspath(model) if model is not None else bundled_model()
        options = _core.SessionOptions()
        options.device = device
        options.tokenizer = os.fspath(tokenizer) if tokenizer is not None else ""
        options.max_model_len = _limit("max_model_len", max_model_len)
        options.max_num_seqs = _limit("max_num_seqs", max_num_seqs)
        options.max_num_batched_tokens = _limit("max_num_batched_tokens", max_num_batched_tokens)
        options.kv_cache_memory_bytes = _limit("kv_cache_memory_bytes", kv_cache_memory_bytes)
        options.num_threads = _limit("num_threads", num_threads)
        options.tensor_parallel_size = tensor_parallel_size
        _set_media_limits(options, limit_mm_per_prompt)
        options.prefix_caching = enable_prefix_caching
        if load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format '{load_format}' is not there; it must be auto or dummy")
        options.dummy_weights = load_format == "dummy"
        options.gpu_memory_utilization = gpu_memory_utilization
        options.enforce_eager = enforce_eager
        options.batch_invariant = batch_invariant
        _set_drafting(options, speculative_config)
        self._seed = seed
        self._num_answers = 0
        self._num_requests = 0
        self._count_lock = threading.Lock()
        self._open_session: _core.Session | None = _core.Session(self.model, options)
        _open_engines.add(self)

    @property
    def device(self) -> str:
        """Where the model runs: "cpu" or "cuda"."""
        return self._session.device

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self._session.vocab_size

    @property
    def max_model_len(self) -> int:
        """Most tokens of a prompt and its answer."""
        return self._session.max_model_len

    @property
    def stop_token_ids(self) -> list[int]:
        """The checkpoint's own stop tokens."""
        return self._session.stop_token_ids

    @property
    def bos_token_id(self) -> int:
        """The token that texts begin with; -1: none."""
        return self._session.bos_token_id

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, in which special tokens may be spelled out; <bos> comes first."""
        return self._session.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._session.decode(list(ids), skip_special_tokens)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt that the model's chat template makes of a conversation; an image or audio file is one token in it."""
        fields = conversation(messages, tools, None, chat_template_kwargs, add_generation_prompt)
        return self._session.render(_dump(fields))

    def close(self) -> None:
        """Ends what runs and frees the model's memory; calls that come later raise, and so does what still waits."""
        session, self._open_session = self._open_session, None
        if session is not None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _session(self) -> _core.Session:
        if self._open_session is None:
            raise _core.Error("the session is closed")
        return self._open_session

    def _encode_prompt(self, prompt: Prompt) -> tuple[str | None, _core.Prompt]:
        text, ids = _split(prompt)
        if ids is None:
            assert text is not None
            return text, self._session.encode_prompt(text)
        try:
            return text, _core.Prompt(list(ids))
        except TypeError:
            raise ValueError(f"{prompt!r:.80} is no prompt: token ids are integers") from None

    def _encode_chat(self, conversation: Mapping[str, Any]) -> _core.Prompt:
        return self._session.encode_chat(_dump(conversation))

    def _next_request(self, num_answers: int) -> tuple[str, int]:
        """An id, and a seed for a request that has none."""
        with self._count_lock:
            number, seed = self._num_requests, self._seed + self._num_answers
            self._num_requests += 1
            self._num_answers += num_answers
        return str(number), seed % 2**64

    def _token_text(self, token_id: int) -> str:
        try:
            return self._session.decode([token_id], False)
        except ValueError:  # A row that only pads the embedding has no text.
            return ""


def conversation(
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    mm_processor_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields of a chat request that make the prompt."""
    fields: dict[str, Any] = {"messages": with_inline_media(messages)}
    if tools is not None:
        fields["tools"] = list(tools)
    if tool_choice is not None:
        fields["tool_choice"] = tool_choice
    if chat_template_kwargs is not None:
        fields["chat_template_kwargs"] = dict(chat_template_kwargs)
    if mm_processor_kwargs is not None:
        fields["mm_processor_kwargs"] = dict(mm_processor_kwargs)
    if not add_generation_prompt:
        fields["add_generation_prompt"] = False
    return fields


def params_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int, default: SamplingParams
) -> list[SamplingParams]:
    if params is None:
        params = default
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise ValueError(f"there are {num_prompts} prompts but {len(params)} sampling parameters")
    return list(params)


def is_one_prompt(prompts: Any) -> bool:
    """Not a list of prompts."""
    if isinstance(prompts, (str, Mapping)):
        return True
    return len(prompts) > 0 and isinstance(prompts[0], int)


def _split(prompt: Prompt) -> tuple[str | None, Sequence[int] | None]:
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is None and ids is None:
            raise ValueError('a prompt given as a dict needs "prompt" or "prompt_token_ids"')
        return text, ids
    return None, prompt


def _dump(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the conversation cannot be written as JSON: {error}") from None


def _limit(name: str, value: int | None) -> int:
    if value is not None and value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value or 0


def _set_media_limits(options: _core.SessionOptions, limits: Mapping[str, int] | None) -> None:
    if limits is None:
        return
    unknown = set(limits) - {"image", "audio", "video"}
    if unknown:
        raise ValueError(f"limit_mm_per_prompt has kinds that are not known: {', '.join(sorted(unknown))}")
    options.max_images = limits.get("image", 0)
    options.max_sounds = limits.get("audio", 0)
    options.max_videos = limits.get("video", 0)


def _set_drafting(options: _core.SessionOptions, config: Mapping[str, Any] | bool | None) -> None:
    options.drafting = config is not False
    if not isinstance(config, Mapping):
        return
    unknown = set(config) - {"model", "num_speculative_tokens", "method", "prompt_lookup_min", "prompt_lookup_max"}
    if unknown:
        raise ValueError(f"speculative_config has fields that are not known: {', '.join(sorted(unknown))}")
    method = config.get("method", "mtp")
    if method not in ("mtp", "ngram"):
        raise ValueError(f"speculative_config: method '{method}' is not there; Gemma 4 drafts by 'mtp' or 'ngram'")
    options.draft_method = "ngram" if method == "ngram" else "assistant"
    options.prompt_lookup_min = int(config.get("prompt_lookup_min", 0))
    options.prompt_lookup_max = int(config.get("prompt_lookup_max", 0))
    options.draft_model = os.fspath(config.get("model", ""))
    options.num_draft_tokens = int(config.get("num_speculative_tokens", 0))


@atexit.register
def _close_all() -> None:
    """Engines have threads of their own, which must end before the interpreter does."""
    for engine in list(_open_engines):
        engine.close()
