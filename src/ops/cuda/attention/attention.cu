#include <algorithm>

#include "base/check.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/attention_hopper.h"
#include "ops/cuda/attention/attention_kernel.cuh"

namespace lapidary::cuda {
namespace {

// 256 dims leave room for two blocks on an SM, or for one with tiles of 128 rows. With tiles of 16
// there is room for three blocks: a decode step's block waits more than it works.
using Separate256Few = AttentionForm<256, 256, 256, 1, 3>;
using Separate256 = AttentionForm<256, 256, 256, 4, 2>;
using Separate256Wide = AttentionForm<256, 256, 256, 8, 1>;
using Separate512 = AttentionForm<512, 512, 512, 4, 1>;
using Shared512 = AttentionForm<512, 128, 512, 4, 1>;

static_assert(kAttentionCombineFloats ==
              std::max({Separate256Few::kCombineFloats * Separate256Few::kBlocksPerSm,
                        Separate256::kCombineFloats* Separate256::kBlocksPerSm,
                        Separate256Wide::kCombineFloats, Separate512::kCombineFloats,
                        Shared512::kCombineFloats}));
static_assert(kAttentionSlotFloats == Shared512::kSlotFloats);

template <typename Form>
__device__ __forceinline__ void RunLargerItem(const AttentionParams& params, AttentionTask& task,
                                              int num_rows, bool is_first,
                                              unsigned char* shared_bytes) {
  if (num_rows <= 32) {
    RunAttentionItem<Form, 2>(params, task, is_first, shared_bytes);
  } else if (Form::kMaxRowTiles == 4 || num_rows <= 64) {
    RunAttentionItem<Form, 4>(params, task, is_first, shared_bytes);
  } else if constexpr (Form::kMaxRowTiles == 8) {
    RunAttentionItem<Form, 8>(params, task, is_first, shared_bytes);
  }
}

template <typename Form>
__global__ void __launch_bounds__(kAttentionThreads, Form::kBlocksPerSm)
    AttentionKernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  AllowNextKernel();
  AttentionTask* const tasks = reinterpret_cast<AttentionTask*>(shared_bytes);
  // The first item is read before it is known whether there are so many: one wait less.
  const int num_items = *params.num_items;
  if (threadIdx.x == 0) tasks[0].item = params.items[blockIdx.x];
  if (static_cast<int>(blockIdx.x) >= num_items)
    WaitForPreviousKernel();  // Others wait in their first item.
  bool odd = false;
  for (int idx = blockIdx.x; idx < num_items; idx += gridDim.x, odd = !odd) {
    AttentionTask& task = tasks[odd];
    if (threadIdx.x == 0) {
      if (idx != blockIdx.x) task.item = params.items[idx];
      task.sequence = params.sequences[task.item.sequence];
    }
    // The task written two items ago is out of use: there is a barrier in every item.
    __syncthreads();
    const int num_rows = task.item.num_queries * params.heads_per_kv_head;
    if (Form::kMaxRowTiles == 1 || num_rows <= 16) {
      RunAttentionItem<Form, 1>(params, task, idx == blockIdx.x, shared_bytes);
    } else if constexpr (Form::kMaxRowTiles > 1) {
      RunLargerItem<Form>(params, task, num_rows, idx == blockIdx.x, shared_bytes);
    }
  }
}

template <typename Form>
int Blocks(const DeviceInfo& device) {
  return device.num_sms * Form::kBlocksPerSm;
}

template <typename Form>
void LaunchForm(const LaunchContext& context, const AttentionParams& params) {
  Launch(context, AttentionKernel<Form>, dim3(Blocks<Form>(context.Device())),
         dim3(kAttentionThreads), Form::kSharedBytes, params);
}

// Calls `use` with the form that these entries take.
template <typename Use>
auto WithForm(const KvEntryPlan& entry, int tile_rows, const Use& use) {
  CHECK(tile_rows >= 16 && tile_rows <= (entry.value_len == 256 ? 128 : 64));
  if (entry.value_len == 256) {
    return tile_rows > 64   ? use(Separate256Wide{})
           : tile_rows > 16 ? use(Separate256{})
                            : use(Separate256Few{});
  }
  return entry.k_is_v() ? use(Shared512{}) : use(Separate512{});
}

// Which kernel items of these tiles go to.
enum class Kernel { kPortable, kFewRows, kWgmma };
Kernel KernelFor(const KvEntryPlan& entry, int tile_rows, bool batch_invariant) {
  if (batch_invariant) return Kernel::kPortable;
  if (tile_rows <= kFewRows) return Kernel::kFewRows;
  return Kernel::kWgmma;
}

}  // namespace

int AttentionBlocks(const DeviceInfo& device, const KvEntryPlan& entry, int tile_rows,
                    bool batch_invariant) {
  CHECK_OK(AttentionSupports(entry, 1));
  if (KernelFor(entry, tile_rows, batch_invariant) != Kernel::kPortable) return device.num_sms;
  return WithForm(entry, tile_rows, [&](auto form) { return Blocks<decltype(form)>(device); });
}

void RunAttention(const LaunchContext& context, const AttentionCall& call) {
  CHECK_OK(AttentionSupports(call.entry, call.geometry.heads_per_kv_head()));
  const AttentionParams params = {
      .queries = call.queries,
      .out = call.out,
      .pool = call.pool,
      .page_bytes = call.page_bytes,
      .layer_offset = call.layer_offset,
      .new_entries = call.new_entries,
      .page_ids = call.page_ids,
      .sequences = call.sequences,
      .items = call.items,
      .num_items = call.num_items,
      .keys_ahead = call.keys_ahead,
      .combined_totals = call.batch_invariant ? call.partials : nullptr,
      .partials = call.batch_invariant
                      ? call.partials + AttentionCombineFloats(context.Device().num_sms)
                      : call.partials,
      .counters = call.counters,
      .tokens_per_page = call.tokens_per_page,
      .num_heads = call.geometry.num_heads,
      .num_kv_heads = call.geometry.num_kv_heads,
      .heads_per_kv_head = call.geometry.heads_per_kv_head(),
      .window = call.geometry.window,
  };
  const Kernel kernel = KernelFor(call.entry, call.tile_rows, call.batch_invariant);
  CHECK(call.keys_ahead == nullptr || kernel == Kernel::kPortable || call.entry.value_len == 256);
  switch (kernel) {
    case Kernel::kFewRows:
      RunHopperAttentionOfFewRows(context, params, call.entry);
      break;
    case Kernel::kWgmma:
      if (call.entry.value_len == 256) {
        RunHopperAttention256(context, params, call.tile_rows);
      } else {
        RunHopperAttention512(context, params, call.entry.k_is_v());
      }
      break;
    case Kernel::kPortable:
      WithForm(call.entry, call.tile_rows,
               [&](auto form) { LaunchForm<decltype(form)>(context, params); });
      break;
  }
}

}  // namespace lapidary::cuda
