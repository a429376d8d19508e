"""vLLM's keywords that have no counterpart here. Values that ask for what happens anyway pass; for others a sentence
says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_ANY = object()
"""Every value passes: the keyword steers what this engine decides alone, or nothing."""


class _Keyword:
    """One of vLLM's keywords: the values that ask for nothing else than what is done, and what is said of others."""

    def __init__(self, sentence: str, *neutral: Any) -> None:
        self.neutral = (None, *neutral)
        self.sentence = sentence

    def accepts(self, value: Any) -> bool:
        for each in self.neutral:
            if each is _ANY or each is value:
                return True
            if type(each) is type(value) and each == value:
                return True
        return isinstance(value, (list, tuple, dict)) and not value


_ADAPTERS = "adapters (LoRA) are not taken here"
_ONE_GPU = "a model runs on one GPU here; start one process for each GPU"
_OWN_KERNELS = "there is one implementation for each device"

ENGINE: Mapping[str, _Keyword] = {
    "tokenizer_mode": _Keyword("the checkpoint's tokenizer.json is read by one implementation", "auto", "hf", "slow"),
    "skip_tokenizer_init": _Keyword("texts need the tokenizer; without one give token ids", False),
    "tokenizer_revision": _Keyword("name the tokenizer's own directory with tokenizer"),
    "code_revision": _Keyword("no code comes with a model", _ANY),
    "runner": _Keyword("models generate text; there are no embeddings", "auto", "generate"),
    "task": _Keyword("models generate text; there are no embeddings", "auto", "generate"),
    "convert": _Keyword("models generate text; there are no embeddings", "auto", "none"),
    "pooler_config": _Keyword("models generate text; there are no embeddings"),
    "allowed_local_media_path": _Keyword("messages of a program may name any file of its own", _ANY),
    "allowed_media_domains": _Keyword("nothing is fetched by URL: give a path, bytes or a data: address"),
    "media_io_kwargs": _Keyword("images and audio are decoded as the reference does it"),
    "chat_template": _Keyword("the template beside the tokenizer is used; tokenizer names another directory"),
    "hf_config_path": _Keyword("config.json is read from the model's own directory"),
    "hf_overrides": _Keyword("config.json is read as it is; write a changed copy beside the weights"),
    "hf_token": _Keyword("set the environment variable HF_TOKEN"),
    "download_dir": _Keyword("set the environment variable HF_HOME or HF_HUB_CACHE"),
    "swap_space": _Keyword("sequences that are put back are computed again", _ANY),
    "cpu_offload_gb": _Keyword("weights are on the device as a whole", 0, 0.0),
    "block_size": _Keyword("page sizes follow from the model", _ANY),
    "num_gpu_blocks_override": _Keyword("use kv_cache_memory_bytes"),
    "calculate_kv_scales": _Keyword("scales are made as values are cached", False),
    "kv_transfer_config": _Keyword("cached values stay in their process"),
    "kv_events_config": _Keyword("events of the cache are for servers"),
    "disable_custom_all_reduce": _Keyword(_OWN_KERNELS, _ANY),
    "disable_cascade_attn": _Keyword(_OWN_KERNELS, _ANY),
    "attention_backend": _Keyword(_OWN_KERNELS, _ANY),
    "attention_config": _Keyword(_OWN_KERNELS, _ANY),
    "compilation_config": _Keyword("nothing is compiled when a model is loaded", _ANY),
    "cudagraph_capture_sizes": _Keyword("graphs are made as they are needed", _ANY),
    "max_seq_len_to_capture": _Keyword("graphs are made as they are needed", _ANY),
    "model_impl": _Keyword(_OWN_KERNELS, "auto", "vllm"),
    "config_format": _Keyword("config.json or a GGUF file is read", "auto", "hf"),
    "use_tqdm_on_load": _Keyword("loading shows no bar", _ANY),
    "model_loader_extra_config": _Keyword("weights are mapped from their files", _ANY),
    "ignore_patterns": _Keyword("only files that are needed are fetched", _ANY),
    "distributed_executor_backend": _Keyword(_ONE_GPU, "mp", "uni"),
    "pipeline_parallel_size": _Keyword(_ONE_GPU, 1),
    "data_parallel_size": _Keyword(_ONE_GPU, 1),
    "decode_context_parallel_size": _Keyword(_ONE_GPU, 1),
    "enable_expert_parallel": _Keyword(_ONE_GPU, False),
    "enable_lora": _Keyword(_ADAPTERS, False),
    "max_loras": _Keyword(_ADAPTERS, _ANY),
    "max_lora_rank": _Keyword(_ADAPTERS, _ANY),
    "logits_processors": _Keyword("tokens are drawn by the engine: see logit_bias, allowed_token_ids, structured_outputs"),
    "structured_outputs_config": _Keyword("there is one compiler of structured outputs", _ANY),
    "guided_decoding_backend": _Keyword("there is one compiler of structured outputs", _ANY),
    "reasoning_parser": _Keyword("thoughts are always told apart", _ANY),
    "enable_chunked_prefill": _Keyword("long prompts are always computed in chunks", True),
    "scheduling_policy": _Keyword("requests with a priority are served by it", "fcfs", "priority"),
    "async_scheduling": _Keyword("steps are always planned while others run", _ANY),
    "generation_config": _Keyword("the checkpoint's own is used", "auto"),
    "override_generation_config": _Keyword("give the values in SamplingParams"),
    "max_logprobs": _Keyword("a request may ask for up to 20", _ANY),
    "logprobs_mode": _Keyword("log-probabilities are those before any sampling parameter", "raw_logprobs"),
    "disable_log_stats": _Keyword("use lapidary.set_log_level", _ANY),
    "served_model_name": _Keyword("only servers have one", _ANY),
    "mm_processor_kwargs": _Keyword("give them with each conversation"),
    "mm_processor_cache_gb": _Keyword("encoded images and audio are kept within limits of their own", _ANY),
    "mm_encoder_only": _Keyword("models generate text; there are no embeddings", False),
    "language_model_only": _Keyword("use limit_mm_per_prompt={} for text alone", False),
    "skip_mm_profiling": _Keyword("nothing is profiled", _ANY),
    "interleave_mm_strings": _Keyword("images and audio stand where their messages have them", _ANY),
    "disable_sliding_window": _Keyword("the model's windows are part of it", False),
    "enable_sleep_mode": _Keyword("close() frees the model's memory", False),
    "disable_hybrid_kv_cache_manager": _Keyword("pages are planned for each kind of layer", _ANY),
    "enable_prompt_embeds": _Keyword("prompts are texts or token ids", False),
    "worker_cls": _Keyword(_OWN_KERNELS, "auto"),
    "additional_config": _Keyword("there is none", _ANY),
    "profiler_config": _Keyword("there is none", _ANY),
}

GENERATE: Mapping[str, _Keyword] = {
    "lora_request": _Keyword(_ADAPTERS),
    "tokenization_kwargs": _Keyword("prompts are tokenised whole: cut token ids yourself"),
    "prompt_token_ids": _Keyword('give the ids as the prompt, or as {"prompt_token_ids": ids}'),
    "guided_options_request": _Keyword("use SamplingParams(structured_outputs=...)"),
}

CHAT: Mapping[str, _Keyword] = {
    "lora_request": _Keyword(_ADAPTERS),
    "tokenization_kwargs": _Keyword("prompts are tokenised whole: shorten the messages"),
    "chat_template": _Keyword("the template beside the tokenizer is used; LLM(tokenizer=...) names another directory"),
    "chat_template_content_format": _Keyword("contents are given to the template as they are", "auto", "openai"),
}

SAMPLING: Mapping[str, _Keyword] = {
    "detokenize": _Keyword("answers have their text; token_ids are beside it", True),
    "spaces_between_special_tokens": _Keyword("special tokens have no text unless skip_special_tokens=False", _ANY),
    "logits_processors": _Keyword("use logit_bias, allowed_token_ids or structured_outputs"),
    "truncate_prompt_tokens": _Keyword("cut the prompt's token ids yourself"),
    "best_of": _Keyword("use n, and choose by cumulative_logprob", 1),
    "use_beam_search": _Keyword("tokens are drawn one by one", False),
    "flat_logprobs": _Keyword("logprobs is a list of dicts", False),
    "skip_reading_prefix_cache": _Keyword("use LLM(enable_prefix_caching=False)", False),
    "guided_decoding": _Keyword("use structured_outputs=StructuredOutputsParams(...)"),
    "extra_args": _Keyword("there are none"),
    "skip_clone": _Keyword("parameters are read when a request begins", _ANY),
}

PROMPT: Mapping[str, _Keyword] = {
    "multi_modal_uuids": _Keyword("images and audio are known by their contents", _ANY),
    "prompt_embeds": _Keyword("prompts are texts or token ids"),
    "token_type_ids": _Keyword("Gemma 4 has no token types"),
    "negative_prompt": _Keyword("there is none"),
    "type": _Keyword("a prompt is a text or token ids", "text", "token", "tokens"),
}


def check(where: str, given: Mapping[str, Any], table: Mapping[str, _Keyword], known: Iterable[str] = ()) -> None:
    """Raises a sentence unless all keywords are vLLM's, with values that change nothing."""
    for name, value in given.items():
        keyword = table.get(name)
        if keyword is None:
            near = difflib.get_close_matches(name, [*known, *table], n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{where} has no keyword '{name}'{hint}")
        if not keyword.accepts(value):
            raise ValueError(f"{where}: {name}={value!r:.60} is not supported: {keyword.sentence}")
