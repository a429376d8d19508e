// KV events on the wire, as vLLM sends them (vllm/distributed/kv_events.py): which blocks of
// prompts a server has cached. Routers of Dynamo and llm-d read them.
#pragma once

#include <span>
#include <string>

#include "kv/resumable_blocks.h"

namespace lapidary {

// MessagePack: [seconds since 1970, [event, ...], data-parallel rank]. Events are maps:
//
//   {type: BlockStored, block_hashes: [...], parent_block_hash, token_ids: [...], block_size,
//    lora_id: nil, medium: GPU, lora_name: nil, extra_keys: [nil or [...], ...], group_idx: 0,
//    kv_cache_spec_kind: full_attention}
//   {type: BlockRemoved, block_hashes: [...], medium: GPU, group_idx: 0}
//   {type: AllBlocksCleared}
//
// An entry of extra_keys says what makes its block another beside tokens: [identifier, where the
// medium begins from the block's start on] of each medium, then the salt, of the first block.
std::string EncodeKvEvents(double seconds, std::span<const BlockEvent> events, int block_size);

}  // namespace lapidary
