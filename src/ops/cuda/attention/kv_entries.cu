#include "base/check.h"
#include "ops/cuda/attention/head_row.cuh"
#include "ops/cuda/attention/kv_entries.h"
#include "ops/cuda/embedding.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

template <int kHeadDim>
__device__ void MakeQuery(const QueryEntryCall& call, int64_t row, int head,
                          const float2* cos_sin) {
  const int heads_in_raw = call.num_heads + call.num_kv_heads * (call.k_is_v ? 1 : 2);
  HeadRow<kHeadDim> query;
  query.Load(call.raw + (row * heads_in_raw + head) * kHeadDim);
  query.NormAndRotate(call.q_norm, cos_sin, call.rotary_pairs, call.eps);
  bf16* out = call.queries + (row * call.num_heads + head) * call.entry.key_len;
  if (call.entry.key_offset < kHeadDim) {
    query.StoreSharedQuery(out, call.owner_k_norm, call.rotary_pairs);
  } else {
    query.Store(out);
  }
}

template <int kHeadDim>
__device__ void MakeEntry(const QueryEntryCall& call, int64_t row, int head,
                          const float2* cos_sin) {
  const int heads_in_raw = call.num_heads + call.num_kv_heads * (call.k_is_v ? 1 : 2);
  const bf16* raw = call.raw + (row * heads_in_raw + call.num_heads + head) * kHeadDim;
  bf16* entry = call.entries + (row * call.num_kv_heads + head) * call.entry.entry_len;
  HeadRow<kHeadDim> value;
  value.Load(call.k_is_v ? raw : raw + call.num_kv_heads * kHeadDim);
  value.Norm(call.eps);
  const bool is_shared = call.entry.key_offset < kHeadDim;
  if (is_shared) {
    value.StoreSharedValue(entry, call.rotary_pairs);
  } else {
    value.Store(entry);
  }
  HeadRow<kHeadDim> key;
  key.Load(raw);
  key.NormAndRotate(call.k_norm, cos_sin, call.rotary_pairs, call.eps);
  if (is_shared) {
    key.StoreSharedKey(entry, call.rotary_pairs);
  } else {
    key.Store(entry + kHeadDim);
  }
}

// A warp per (row, query head or KV head).
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) QueryEntryKernel(QueryEntryCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int heads = call.num_heads + call.num_kv_heads;
  const int64_t task = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (task >= int64_t{call.rows} * heads) return;
  const int64_t row = task / heads;
  const int head = static_cast<int>(task % heads);
  const int64_t rope_row = call.rope_rows == nullptr ? row : call.rope_rows[row];
  const float2* cos_sin = call.rope + rope_row * RopeRowPairs(call.rotary_pairs);
  if (head < call.num_heads) {
    MakeQuery<kHeadDim>(call, row, head, cos_sin);
  } else {
    MakeEntry<kHeadDim>(call, row, head - call.num_heads, cos_sin);
  }
}

// A warp per (layer, row, KV head).
__global__ void __launch_bounds__(kThreads) StoreEntriesKernel(StoreEntriesCall call) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const StoredLayer layer = call.layers[blockIdx.y];
  const int64_t task = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  if (task >= int64_t{call.rows} * layer.num_kv_heads) return;
  const int64_t row = task / layer.num_kv_heads;
  const int head = static_cast<int>(task % layer.num_kv_heads);
  const int64_t page = call.pages[layer.group][row];
  if (page == 0) return;
  const int64_t entry_bytes = layer.entry_len * sizeof(bf16);
  const int64_t slot = int64_t{head} * layer.tokens_per_page + call.slots[layer.group][row];
  const uint4* from = reinterpret_cast<const uint4*>(layer.entries + task * layer.entry_len);
  uint4* to = reinterpret_cast<uint4*>(call.pool + page * call.page_bytes + layer.layer_offset +
                                       slot * entry_bytes);
  for (int64_t at = threadIdx.x % kWarpSize; at < entry_bytes / 16; at += kWarpSize) {
    to[at] = from[at];
  }
}

// Every block copies its own part of all pages, so copies of one part happen in order.
__global__ void __launch_bounds__(kThreads)
    CopyPagesKernel(std::byte* pool, int64_t page_bytes, const int32_t* from_to, int num_copies) {
  AllowNextKernel();
  WaitForPreviousKernel();
  for (int copy = 0; copy < num_copies; ++copy) {
    const uint4* from = reinterpret_cast<const uint4*>(pool + from_to[2 * copy] * page_bytes);
    uint4* to = reinterpret_cast<uint4*>(pool + from_to[2 * copy + 1] * page_bytes);
    for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < page_bytes / 16;
         at += int64_t{gridDim.x} * kThreads) {
      to[at] = from[at];
    }
  }
}

unsigned BlocksFor(int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

}  // namespace

void RunQueryEntry(const LaunchContext& context, const QueryEntryCall& call) {
  const unsigned blocks = BlocksFor(int64_t{call.rows} * (call.num_heads + call.num_kv_heads));
  CHECK_OK(QueryEntrySupports(call.head_dim));
  const auto kernel = call.head_dim == 256 ? QueryEntryKernel<256> : QueryEntryKernel<512>;
  Launch(context, kernel, dim3(blocks), dim3(kThreads), 0, call);
}

void RunStoreEntries(const LaunchContext& context, const StoreEntriesCall& call) {
  Launch(context, StoreEntriesKernel,
         dim3(BlocksFor(int64_t{call.rows} * call.max_kv_heads), call.num_layers), dim3(kThreads),
         0, call);
}

void RunCopyPages(const LaunchContext& context, std::byte* pool, int64_t page_bytes,
                  const int32_t* from_to, int num_copies) {
  CHECK_EQ(page_bytes % 16, 0);
  Launch(context, CopyPagesKernel, dim3(2 * context.Device().num_sms), dim3(kThreads), 0, pool,
         page_bytes, from_to, num_copies);
}

}  // namespace lapidary::cuda
