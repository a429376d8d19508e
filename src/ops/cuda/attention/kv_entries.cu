#include "base/check.h"
#include "ops/cuda/attention/head_row.cuh"
#include "ops/cuda/attention/kv_entries.h"
#include "ops/cuda/embedding.h"

namespace lapidary::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

template <int kHeadDim>
using Row = HeadRow<kHeadDim>;

// One head of the projection, q, k or v, normed; k and v make an entry, both of them where K is V.
template <int kHeadDim>
class HeadTask {
 public:
  __device__ HeadTask(const QueryEntryCall& call, int64_t row, int head)
      : call_(call), row_(row), head_(head) {}

  __device__ static int HeadsInRaw(const QueryEntryCall& call) {
    return call.num_heads + call.num_kv_heads * (call.k_is_v ? 1 : 2);
  }

  __device__ const bf16* raw() const {
    return call_.raw + (row_ * HeadsInRaw(call_) + head_) * kHeadDim;
  }
  // The weight of its norm; null: a value, which has none.
  __device__ const float* norm() const {
    return is_query() ? call_.q_norm : is_key() ? call_.k_norm : nullptr;
  }

  __device__ void Run(Row<kHeadDim>& values, const float (&norm)[Row<kHeadDim>::kPerLane],
                      const typename Row<kHeadDim>::Angles& angles) const {
    values.Norm(call_.eps);
    if (!is_query() && (call_.k_is_v || !is_key())) StoreValue(values);
    if (!is_query() && !is_key()) return;
    values.Multiply(norm);
    values.Rotate(angles);
    if (is_query()) {
      StoreQuery(values);
    } else {
      StoreKey(values);
    }
  }

 private:
  __device__ bool is_query() const { return head_ < call_.num_heads; }
  __device__ bool is_key() const { return head_ < call_.num_heads + call_.num_kv_heads; }
  __device__ bool shares_dims() const { return call_.entry.key_offset < kHeadDim; }

  __device__ bf16* entry() const {
    const int kv_head = (head_ - call_.num_heads) % call_.num_kv_heads;
    return call_.entries + (row_ * call_.num_kv_heads + kv_head) * call_.entry.entry_len;
  }

  __device__ void StoreQuery(Row<kHeadDim>& query) const {
    bf16* const to = call_.queries + (row_ * call_.num_heads + head_) * call_.entry.key_len;
    if (shares_dims()) {
      query.StoreSharedQuery(to, call_.owner_k_norm, call_.rotary_pairs);
    } else {
      query.Store(to);
    }
  }
  __device__ void StoreKey(const Row<kHeadDim>& key) const {
    if (shares_dims()) {
      key.StoreSharedKey(entry(), call_.rotary_pairs);
    } else {
      key.Store(entry() + kHeadDim);
    }
  }
  __device__ void StoreValue(const Row<kHeadDim>& value) const {
    if (shares_dims()) {
      value.StoreSharedValue(entry(), call_.rotary_pairs);
    } else {
      value.Store(entry());
    }
  }

  const QueryEntryCall& call_;
  const int64_t row_;
  const int head_;
};

// A warp per kHeads neighbouring heads of a row. All are asked for at once; what they multiply with
// is read once for those of a kind.
template <int kHeadDim, int kHeads>
__global__ void __launch_bounds__(kThreads)
    QueryEntryKernel(const __grid_constant__ QueryEntryCall call) {
  using Task = HeadTask<kHeadDim>;
  AllowNextKernel();
  const int heads = Task::HeadsInRaw(call);
  const int warps_of_row = (heads + kHeads - 1) / kHeads;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int64_t row = warp / warps_of_row;
  const int first = static_cast<int>(warp % warps_of_row) * kHeads;
  const float* norm_of = Task(call, row, first).norm();
  float norm[Row<kHeadDim>::kPerLane] = {};
  if (norm_of != nullptr) Row<kHeadDim>::LoadPerDim(norm_of, norm);
  WaitForPreviousKernel();
  if (row >= call.rows) return;
  typename Row<kHeadDim>::Packed packed[kHeads] = {};
#pragma unroll
  for (int idx = 0; idx < kHeads; ++idx) {
    if (first + idx < heads) Row<kHeadDim>::Load(Task(call, row, first + idx).raw(), packed[idx]);
  }
  const int64_t rope_row = call.rope_rows == nullptr ? row : call.rope_rows[row];
  typename Row<kHeadDim>::Angles angles;
  Row<kHeadDim>::LoadAngles(call.rope + rope_row * RopeRowPairs(call.rotary_pairs),
                            call.rotary_pairs, angles);
#pragma unroll
  for (int idx = 0; idx < kHeads; ++idx) {
    if (first + idx >= heads) return;
    const Task task(call, row, first + idx);
    if (task.norm() != norm_of && task.norm() != nullptr) {
      norm_of = task.norm();
      Row<kHeadDim>::LoadPerDim(norm_of, norm);
    }
    Row<kHeadDim> values;
    values.Unpack(packed[idx]);
    task.Run(values, norm, angles);
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
  CHECK_OK(QueryEntrySupports(call.head_dim));
  // Few rows have a warp for each head; of many, four to a warp keep as many bytes on their way
  // with fewer blocks to start.
  constexpr int kManyHeads = 4;
  constexpr int64_t kWarpsOfSm = 64;
  const int heads = call.num_heads + call.num_kv_heads * (call.k_is_v ? 1 : 2);
  const bool is_many =
      int64_t{call.rows} * heads >= kManyHeads * kWarpsOfSm * context.Device().num_sms;
  const int heads_of_warp = is_many ? kManyHeads : 1;
  const auto kernel =
      call.head_dim == 256
          ? (is_many ? QueryEntryKernel<256, kManyHeads> : QueryEntryKernel<256, 1>)
          : (is_many ? QueryEntryKernel<512, kManyHeads> : QueryEntryKernel<512, 1>);
  const int64_t warps_of_row = (heads + heads_of_warp - 1) / heads_of_warp;
  Launch(context, kernel, dim3(BlocksFor(call.rows * warps_of_row)), dim3(kThreads), 0, call);
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
