"""The model's tokenizer, with the methods that programs call of those from transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine


class Tokenizer:
    """What ``LLM.get_tokenizer()`` returns. It is of use as long as its model is open."""

    def __init__(self, engine: Engine, prompt_ids: Callable[[Mapping[str, Any]], list[int]]) -> None:
        self._engine = engine
        self._prompt_ids = prompt_ids

    @property
    def bos_token_id(self) -> int | None:
        """The token that texts begin with."""
        return self._engine.bos_token_id if self._engine.bos_token_id >= 0 else None

    @property
    def eos_token_id(self) -> int | None:
        """The first of the checkpoint's stop tokens."""
        stops = self._engine.stop_token_ids
        return stops[0] if stops else None

    @property
    def vocab_size(self) -> int:
        return self._engine.vocab_size

    def __len__(self) -> int:
        return self._engine.vocab_size

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """{"input_ids": ids, "attention_mask": ones} of one text."""
        ids = self.encode(text, add_special_tokens)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, in which special tokens may be spelled out; <bos> comes first."""
        return self._engine.encode(text, add_special_tokens)

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._engine.decode([ids] if isinstance(ids, int) else ids, skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **chat_template_kwargs: Any,
    ) -> str | list[int]:
        """The prompt of a conversation: token ids, or its text with ``tokenize=False``."""
        from .engine import conversation as fields_of

        fields = fields_of(
            conversation, tools, None, chat_template_kwargs or None, add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self._prompt_ids(fields) if tokenize else self._engine._render(fields)
