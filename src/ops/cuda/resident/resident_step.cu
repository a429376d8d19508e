#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/resident/resident_attention.cuh"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_limits.h"
#include "ops/cuda/resident/resident_producer.cuh"
#include "ops/cuda/resident/resident_product.cuh"
#include "ops/cuda/resident/resident_program.h"
#include "ops/cuda/resident/resident_step.h"
#include "ops/cuda/resident/resident_tuning.h"
#include "ops/cuda/row_norm.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kMaxMultipliers = 32;  // per block

// Shared memory, in bytes, behind a BlockState.
constexpr int kStateBytes = 17280;
struct SharedLayout {
  int x = 0;  // bf16 [widest input], or what attention needs; behind f32 [hidden]
  int slots = 0;
  int num_slots = 0;
  int slot_bytes = 0;

  SharedLayout(const ResidentWidths& widths, int max_bytes)
      : slot_bytes(kResidentTunings[ResidentTuningOf(widths.hidden)].slot_bytes) {
    x = kStateBytes + widths.hidden * static_cast<int>(sizeof(float));
    const int x_bytes =
        std::max((widths.widest_input + 63) / 64 * 128,
                 static_cast<int>(sizeof(ResidentAttentionMemory)) + widths.query_bytes);
    slots = (x + x_bytes + 1023) / 1024 * 1024;  // the swizzle's period
    num_slots = std::min(kMaxSlots, (max_bytes - slots) / slot_bytes);
  }
  int total() const { return slots + num_slots * slot_bytes; }
};

struct KernelParams {
  ResidentStepCall call;
  SharedLayout shared;
};

extern __shared__ __align__(1024) std::byte shared_memory[];

// What is used in every phase, in shared memory: a spilled register or a descriptor in device
// memory would cost a trip through L2 each, since the ring leaves next to nothing of L1.
struct WarpState {
  int phase;
  uint32_t number;  // of the exchange of this phase
  TeamPosition team;
};
// A phase with all that can be known before it begins, made by a warp of its own.
struct PreparedPhase {
  alignas(16) ResidentPhase phase;
  MatrixPart part;
  int num_tiles;
  float multiplier[kMaxMultipliers];  // of the part's rows
};
constexpr int kPreparedPhases = 4;  // as many as a layer has at least: one has attention
struct BlockState {
  ResidentProgram program;
  PreparedPhase phases[kPreparedPhases];  // this one and the next ones, in turns
  uint64_t prepared[kPreparedPhases];     // barriers: the preparing warp
  uint64_t finished[kPreparedPhases];     // barriers: the computing warps
  ResidentSequence sequences[kNumKvGroups];
  SplitPlan plans[kNumKvGroups];
  KernelParams params;
  WarpState warps[kResidentWarps];
  uint64_t arrived[kMaxSlots];   // barriers of the ring
  uint64_t consumed[kMaxSlots];  // behind them
  float sums[2 * kBatchTiles * kTileSums];
  alignas(16) float block_sums[2][kResidentWarps];
  ResidentEntries entries;
};
static_assert(sizeof(BlockState) <= kStateBytes);
static_assert(offsetof(BlockState, consumed) == offsetof(BlockState, arrived) + kMaxSlots * 8);

__device__ __forceinline__ BlockState& State() {
  return *reinterpret_cast<BlockState*>(shared_memory);
}

__device__ __forceinline__ WarpState& StateOfWarp() { return State().warps[ThreadOfPhase() / 32]; }

__device__ __forceinline__ PreparedPhase& Prepared(int phase) {
  return State().phases[phase % kPreparedPhases];
}
// Barriers of a place among the prepared phases complete once for each of its phases.
__device__ __forceinline__ uint32_t ParityOfPhase(int phase) { return phase / kPreparedPhases % 2; }

template <int kSlotBytes>
__device__ __forceinline__ Ring<kSlotBytes> TheRing() {
  const KernelParams& params = State().params;
  return {.slots = shared_memory + params.shared.slots,
          .arrived = SharedAddress(State().arrived),
          .consumed = SharedAddress(State().consumed),
          .num_slots = params.shared.num_slots};
}

// x of a product, or what attention needs.
__device__ __forceinline__ std::byte* Input() { return shared_memory + State().params.shared.x; }
__device__ __forceinline__ float4* Hidden() {
  return reinterpret_cast<float4*>(shared_memory + kStateBytes);
}

// Four values of x, bf16.
__device__ __forceinline__ void StoreInput(int quad, uint2 values) {
  auto* x = reinterpret_cast<uint32_t*>(Input());
  const int place = InputPlace(2 * quad);
  x[place] = values.x;
  x[place + 4] = values.y;
}

// The sum over all workers, the same in each.
__device__ __forceinline__ float SumOverWorkers(int thread, float value, float* scratch) {
  value = WarpSum(value);
  if (thread % 32 == 0) scratch[thread / 32] = value;
  SyncWorkers();
  const auto* quads = reinterpret_cast<const float4*>(scratch);
  const float4 low = quads[0];
  const float4 high = quads[1];
  return SumInPairs({low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w});
}

static_assert(kResidentWorkers == kNormThreads);  // ForEachQuad

// Fast, not with the bits of other kernels: each block waits for it.
__device__ __forceinline__ float QuickInverseRms(float sum_of_squares, int dim, float eps) {
  return rsqrtf(__fdividef(sum_of_squares, static_cast<float>(dim)) + eps);
}

// ResidualUpdate of linear.h; the residual stream stays in shared memory, a copy in every block.
// Each thread reads only what it wrote. `number`: of the packets.
template <int kQuads>
__device__ __forceinline__ void UpdateResidual(const ResidentPhase& phase, uint32_t number) {
  const int thread = ThreadOfPhase();
  auto* hidden = Hidden();
  const int dim = phase.matrix.in_dim;
  const int num_quads = dim / 4;
  const uint64_t* packets = phase.input;
  const float* pre_norm = phase.pre_norm;
  // On their way while we wait for the packets. (Set, even where they are not read: what a branch
  // leaves undefined would be kept in registers through all phases.)
  float4 post[kQuads] = {};
  float4 pre[kQuads] = {};
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    if (packets != nullptr) {
      post[idx] = __ldg(reinterpret_cast<const float4*>(phase.post_norm) + quad);
    }
    if (pre_norm != nullptr) pre[idx] = __ldg(reinterpret_cast<const float4*>(pre_norm) + quad);
  });
  float inverse_rms = 0.0f;
  uint2 out[kQuads] = {};
  if (packets != nullptr) {
    ReceiveQuads<kQuads>(packets, thread, kResidentWorkers, num_quads, number, out);
    float squares = 0.0f;
    ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int) {
      squares = AddSquares(squares, UnpackBf16x4(out[idx]));
    });
    inverse_rms = QuickInverseRms(SumOverWorkers(thread, squares, State().block_sums[0]), dim,
                                  State().params.call.eps);
  }
  float squares = 0.0f;
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    float4 h = hidden[quad];
    if (packets != nullptr) {
      h = Updated(h, Normed(UnpackBf16x4(out[idx]), inverse_rms, post[idx]), phase.scale);
      hidden[quad] = h;
    }
    squares = AddSquares(squares, h);
  });
  if (pre_norm != nullptr) {
    inverse_rms = QuickInverseRms(SumOverWorkers(thread, squares, State().block_sums[1]), dim,
                                  State().params.call.eps);
  }
  ForEachQuad<kQuads>(thread, num_quads, [&](int idx, int quad) {
    float4 h = hidden[quad];
    if (pre_norm != nullptr) h = Normed(h, inverse_rms, pre[idx]);
    StoreInput(quad, PackBf16x4(h));
  });
}

// Zeros behind the input, to a multiple of 64 values.
__device__ __forceinline__ void PadInput(int thread, int dim) {
  const int quad = dim / 4 + thread;
  if (thread < 16 && quad < (dim + 63) / 64 * 16) StoreInput(quad, make_uint2(0, 0));
}

// Packets as they are become the input.
template <int kReceiveQuads>
__device__ __forceinline__ void ReceiveInput(const ResidentPhase& phase, uint32_t number) {
  const int thread = ThreadOfPhase();
  const int num_quads = phase.matrix.in_dim / 4;
#pragma unroll 1
  for (int first = 0; first < num_quads; first += kReceiveQuads * kResidentWorkers) {
    uint2 quads[kReceiveQuads] = {};
    ReceiveQuads<kReceiveQuads>(phase.input, first + thread, kResidentWorkers, num_quads, number,
                                quads);
    // A split of attention may still be at work where the input goes; products are done with their
    // input when they have their sums.
    if (first == 0 && phase.attention.head_dim != 0) SyncWorkers();
#pragma unroll
    for (int idx = 0; idx < kReceiveQuads; ++idx) {
      const int quad = first + thread + idx * kResidentWorkers;
      if (quad < num_quads) StoreInput(quad, quads[idx]);
    }
  }
}

template <int kSlotBytes, int kKeys, int kValueLen, int kKeyOffset, int kKeyLen>
__device__ __forceinline__ void RunSplit(const ResidentAttention& attention, uint32_t number) {
  AttentionSplit<kSlotBytes, kKeys, kValueLen, kKeyOffset, kKeyLen> split(
      State().params.call.eps, attention, State().sequences[attention.group].position,
      State().plans[attention.group], blockIdx.x, TheRing<kSlotBytes>(), StateOfWarp().team,
      *reinterpret_cast<ResidentAttentionMemory*>(Input()), State().entries);
  split.Run(State().program.partials, blockIdx.x, number);
  __syncwarp();
  if (threadIdx.x % 32 == 0) StateOfWarp().team = split.team();
  __syncwarp();
}

template <int kSlotBytes>
__device__ __forceinline__ void Attend(const ResidentPhase& phase, uint32_t number) {
  const ResidentAttention& attention = phase.attention;
  const SplitPlan& plan = State().plans[attention.group];
  if (blockIdx.x < plan.num_splits) {
    if (attention.head_dim == 512 && attention.keys_are_apart) {
      RunSplit<kSlotBytes, 32, 512, 512, 512>(attention, number);
    } else if (attention.head_dim == 512) {
      RunSplit<kSlotBytes, 32, 512, 128, 512>(attention, number);
    } else if (plan.round_keys == 32) {
      RunSplit<kSlotBytes, 32, 256, 256, 256>(attention, number);
    } else {
      RunSplit<kSlotBytes, 64, 256, 256, 256>(attention, number);
    }
  }
  CombineSplits(attention, plan, State().program.partials, number,
                const_cast<uint64_t*>(phase.input));
}

// The product with the input, and what becomes of its sums.
template <int kSlotBytes>
__device__ __forceinline__ void Multiply(PartMultiplier<kSlotBytes>& multiplier,
                                         const PreparedPhase& prepared, uint32_t number) {
  const MatrixPart& part = prepared.part;
  const ResidentPhase& phase = prepared.phase;
  const ResidentFinish finish = phase.finish;
  const int lane = ThreadOfPhase() % 32;
  multiplier.Run(part, State().sums, [&](int first, int count, float value) {
    const bool has_value = lane < count;
    if (finish == ResidentFinish::kLogits) {
      if (has_value) {
        State().params.call.logits[first + lane] = Softcap(value, State().params.call.softcap);
      }
      return;
    }
    if (finish == ResidentFinish::kGatedGelu) {
      value = GeluTanh(value) * __shfl_down_sync(0xffffffffu, value, 8);
    } else if (finish == ResidentFinish::kGeluMul && has_value) {
      value = GeluTanh(value) * prepared.multiplier[first - part.first + lane];
    }
    const float next = __shfl_down_sync(0xffffffffu, value, 1);
    if (has_value && lane % 2 == 0) {
      SendPacket(phase.output + (first + lane) / 2, PackBf16x2(value, next), number);
    }
  });
}

// The new entry of an owner of KV to its page. `number`: of the phase in which it was made.
__device__ __forceinline__ void StoreEntry(const ResidentStepCall& call,
                                           const ResidentAttention& attention, uint32_t number) {
  const int64_t page = *call.write_pages[attention.group];
  if (page == 0) return;
  const int slot = *call.write_slots[attention.group];
  const int quads = attention.entry_len / 4;
  auto* to = reinterpret_cast<uint2*>(call.pool + page * call.page_bytes + attention.layer_offset);
  for (int at = threadIdx.x; at < attention.num_kv_heads * quads; at += kResidentWorkers) {
    uint2 values[1];
    ReceiveQuads<1>(attention.kept, at, 1, at + 1, number, values);
    const int64_t place = int64_t{at / quads} * call.tokens_per_page[attention.group] + slot;
    to[place * quads + at % quads] = values[0];
  }
}

// A phase has two halves, functions of their own that share nothing in registers: what lives across
// a call, or while the half with more need of registers runs, would be spilled everywhere.
template <int kTuning>
__device__ __noinline__ void RunAttention() {
  Attend<kResidentTunings[kTuning].slot_bytes>(Prepared(StateOfWarp().phase).phase,
                                               StateOfWarp().number);
}

template <int kTuning>
__device__ __noinline__ void RunProduct(int idx, uint32_t number) {
  constexpr ResidentTuning kConstants = kResidentTunings[kTuning];
  const PreparedPhase& prepared = Prepared(idx);
  const ResidentPhase& phase = prepared.phase;
  PartMultiplier multiplier(TheRing<kConstants.slot_bytes>(), StateOfWarp().team, prepared.part,
                            prepared.num_tiles, Input());
  if (phase.reads_residual) {
    UpdateResidual<kConstants.max_hidden / (4 * kResidentWorkers)>(phase, number - 1);
  } else {
    ReceiveInput<kConstants.receive_quads>(phase,
                                           phase.attention.head_dim != 0 ? number : number - 1);
  }
  if (phase.matrix.in_dim % kChunkValues != 0) PadInput(ThreadOfPhase(), phase.matrix.in_dim);
  SyncWorkers();
  Multiply(multiplier, prepared, number);
  __syncwarp();
  if (ThreadOfPhase() % 32 == 0) {
    ArriveAtBarrier(SharedAddress(State().finished) + idx % kPreparedPhases * 8);
    StateOfWarp() = {.phase = idx + 1, .number = number + 1, .team = multiplier.position()};
  }
  __syncwarp();
}

// One phase; true: there are more.
template <int kTuning>
__device__ __forceinline__ bool RunPhase() {
  const int idx = StateOfWarp().phase;
  AwaitBarrier(SharedAddress(State().prepared) + idx % kPreparedPhases * 8, ParityOfPhase(idx));
  if (Prepared(idx).phase.attention.head_dim != 0) RunAttention<kTuning>();
  RunProduct<kTuning>(StateOfWarp().phase, StateOfWarp().number);
  return StateOfWarp().phase < State().program.num_phases;
}

// One warp: whatever can be done for a phase before it begins.
__device__ __forceinline__ void PreparePhases() {
  const auto* program = static_cast<const ResidentProgram*>(State().params.call.program);
  const int lane = threadIdx.x % 32;
  constexpr int kPieces = sizeof(ResidentPhase) / 16;
  static_assert(sizeof(ResidentPhase) % 16 == 0 && kPieces <= 32);
  const auto load = [&](int idx) {
    const bool is_one = lane < kPieces && idx < State().program.num_phases;
    return is_one ? __ldg(reinterpret_cast<const uint4*>(program->phases() + idx) + lane) : uint4{};
  };
  uint4 next = load(0);
#pragma unroll 1
  for (int idx = 0; idx < State().program.num_phases; ++idx) {
    PreparedPhase& prepared = Prepared(idx);
    const uint32_t place = idx % kPreparedPhases * 8;
    AwaitBarrier(SharedAddress(State().finished) + place, ParityOfPhase(idx) ^ 1);
    if (lane < kPieces) reinterpret_cast<uint4*>(&prepared.phase)[lane] = next;
    __syncwarp();
    next = load(idx + 1);
    const ResidentPhase& phase = prepared.phase;
    const MatrixPart part = PartOfBlock(phase.matrix);
    if (lane == 0) {
      prepared.part = part;
      prepared.num_tiles = part.num_tiles();
    }
    if (phase.finish == ResidentFinish::kGeluMul && lane < part.count) {
      const uint16_t bits =
          __ldcg(reinterpret_cast<const uint16_t*>(phase.multiplier + part.first + lane));
      prepared.multiplier[lane] = __uint_as_float(static_cast<uint32_t>(bits) << 16);
    }
    if (phase.attention.head_dim != 0) {
      PrepareSplit(phase.attention, State().plans[phase.attention.group], State().entries);
    }
    __syncwarp();
    if (lane == 0) ArriveAtBarrier(SharedAddress(State().prepared) + place);
  }
}

// What the computing warps do.
template <int kTuning>
__device__ __forceinline__ void Work() {
  const auto* program = static_cast<const ResidentProgram*>(State().params.call.program);
  const auto* hidden_in = reinterpret_cast<const float4*>(State().params.call.hidden_in);
  auto* hidden = Hidden();
  for (int quad = threadIdx.x; quad < State().program.hidden / 4; quad += kResidentWorkers) {
    hidden[quad] = __ldcg(hidden_in + quad);
  }
  if (threadIdx.x % 32 == 0) {
    const int team = static_cast<int>(threadIdx.x / 32) / kSlotWarps;
    StateOfWarp() = {.phase = 0,
                     .number = __ldcg(State().program.number) + 1,
                     .team = {.at = {.slot = team}, .has_turn = team == 0 ? 1 : 0}};
  }
  __syncwarp();
#pragma unroll 1
  while (RunPhase<kTuning>()) {
  }
  auto* hidden_out = reinterpret_cast<float4*>(State().params.call.hidden_out);
  if (hidden_out != nullptr && blockIdx.x == gridDim.x - 1) {
    for (int quad = threadIdx.x; quad < State().program.hidden / 4; quad += kResidentWorkers) {
      hidden_out[quad] = hidden[quad];
    }
  }
  // New entries go to their pages last: nobody reads the old ones any more.
  const int num_phases = State().program.num_phases;
#pragma unroll 1
  for (int idx = blockIdx.x; idx < num_phases; idx += static_cast<int>(gridDim.x)) {
    const ResidentAttention& attention = program->phases()[idx].attention;
    if (attention.head_dim == 0 || !attention.owns_kv) continue;
    const uint32_t number = StateOfWarp().number;
    StoreEntry(State().params.call, attention, number - num_phases + idx);
  }
  // Every block has read the number: without its part in the exchanges we would not be here.
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *State().program.number = StateOfWarp().number - 1;
  }
}

template <int kTuning>
__global__ void __launch_bounds__(kResidentThreads, 1)
    ResidentStepKernel(const __grid_constant__ KernelParams params) {
  constexpr ResidentTuning kConstants = kResidentTunings[kTuning];
  if (threadIdx.x == 0) {
    State().program = *static_cast<const ResidentProgram*>(params.call.program);
    State().params = params;
    const auto ring = TheRing<kConstants.slot_bytes>();
    for (int slot = 0; slot < ring.num_slots; ++slot) {
      InitBarrier(ring.arrived + slot * 8, 1);
      InitBarrier(ring.consumed + slot * 8, kResidentWarps);
    }
    for (int place = 0; place < kPreparedPhases; ++place) {
      InitBarrier(SharedAddress(&State().prepared[place]), 1);
      InitBarrier(SharedAddress(&State().finished[place]), kResidentWarps);
    }
    PublishBarriers();
  }
  // What the host has written for this step was there before the first of its kernels.
  if (threadIdx.x >= 32 && threadIdx.x < 32 + kNumKvGroups) {
    const int group = static_cast<int>(threadIdx.x) - 32;
    const AttentionSequence sequence = *params.call.sequences[group];
    const ResidentKvGroup layers =
        static_cast<const ResidentProgram*>(params.call.program)->groups[group];
    State().sequences[group] = {sequence.first_position, sequence.table_base};
    if (layers.num_heads > 0) State().plans[group] = SplitPlan(layers, sequence.first_position);
  }
  AllowNextKernel();
  __syncthreads();
  if (threadIdx.x >= kResidentWorkers + 32) {
    WaitForPreviousKernel();
    PreparePhases();
  } else if (threadIdx.x >= kResidentWorkers) {
    BringAll<kConstants.in_flight>(TheRing<kConstants.slot_bytes>(), State().params.call,
                                   State().program.num_phases, State().plans, State().sequences);
  } else {
    WaitForPreviousKernel();
    Work<kTuning>();
  }
}

using Kernel = void (*)(KernelParams);
template <int kTuning = 0>
Kernel KernelFor(int tuning) {
  if constexpr (kTuning + 1 < kNumResidentTunings) {
    if (tuning > kTuning) return KernelFor<kTuning + 1>(tuning);
  }
  return ResidentStepKernel<kTuning>;
}

}  // namespace

bool ResidentStepSupports(const DeviceInfo& device, const DecoderProgram& program) {
  if (!PhasesAreResident(program)) return false;
  const ResidentWidths widths(program);
  const int num_blocks = ResidentBlocks(device, widths);
  // Dims are multiples of 8, heads and entries those of attention.h (CheckSupported sees to it).
  return widths.hidden <= kMaxResidentHidden && widths.vocab_size % 2 == 0 &&
         WeightsAreBf16(program) && GroupsAreUniform(program) &&
         widths.max_kv_heads <= num_blocks &&
         widths.ple_width / num_blocks + 2 <= kMaxMultipliers &&
         SharedLayout(widths, device.shared_bytes_per_block).num_slots >= kMinSlots;
}

void RunResidentStep(const LaunchContext& context, const ResidentWidths& widths,
                     const ResidentStepCall& call) {
  const DeviceInfo& device = context.Device();
  const KernelParams params{.call = call,
                            .shared = SharedLayout(widths, device.shared_bytes_per_block)};
  CHECK_GE(params.shared.num_slots, kMinSlots);
  const auto kernel = KernelFor(ResidentTuningOf(widths.hidden));
  Launch(context, kernel, dim3(ResidentBlocks(device, widths)), dim3(kResidentThreads),
         params.shared.total(), params);
}

}  // namespace lapidary::cuda
