#include <cstddef>

#include "base/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/resident/resident_attention.cuh"
#include "ops/cuda/resident/resident_digits.cuh"
#include "ops/cuda/resident/resident_exchange.cuh"
#include "ops/cuda/resident/resident_experts.cuh"
#include "ops/cuda/resident/resident_limits.h"
#include "ops/cuda/resident/resident_producer.cuh"
#include "ops/cuda/resident/resident_product.cuh"
#include "ops/cuda/resident/resident_program.h"
#include "ops/cuda/resident/resident_residual.cuh"
#include "ops/cuda/resident/resident_state.cuh"
#include "ops/cuda/resident/resident_step.h"
#include "ops/cuda/resident/resident_tuning.h"

namespace lapidary::cuda {
namespace {

// Zeros behind the input, to a multiple of 64 values.
__device__ __forceinline__ void PadInput(std::byte* input, int thread, int dim) {
  const int quad = dim / 4 + thread;
  if (thread < 16 && quad < (dim + 63) / 64 * 16) StoreInput(input, quad, make_uint2(0, 0));
}

// Packets as they are become the input.
template <int kReceiveQuads, bool kTiled>
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
    if (kTiled && phase.matrix.is_tiled()) {
      float4 values[kReceiveQuads];
#pragma unroll
      for (int idx = 0; idx < kReceiveQuads; ++idx) values[idx] = UnpackBf16x4(quads[idx]);
      StoreDigits<kReceiveQuads>(Input(), phase.matrix.format, first + thread, kResidentWorkers,
                                 num_quads, values);
      continue;
    }
#pragma unroll
    for (int idx = 0; idx < kReceiveQuads; ++idx) {
      const int quad = first + thread + idx * kResidentWorkers;
      if (quad < num_quads) StoreInput(Input(), quad, quads[idx]);
    }
  }
}

template <int kSlotBytes, int kKeys, int kValueLen, int kKeyOffset, int kKeyLen>
__device__ __forceinline__ void RunSplit(const ResidentAttention& attention, uint32_t number) {
  AttentionSplit<kSlotBytes, kKeys, kValueLen, kKeyOffset, kKeyLen> split(
      State().params.call.eps, attention, State().sequences[attention.group].num_cached,
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
    } else if (attention.head_dim == 512 && plan.round_keys == 32) {
      RunSplit<kSlotBytes, 32, 512, 128, 512>(attention, number);
    } else if (attention.head_dim == 512) {
      if constexpr (MostRoundKeys<kSlotBytes>(640) == 64) {
        RunSplit<kSlotBytes, 64, 512, 128, 512>(attention, number);
      }
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
template <bool kExperts, int kSlotBytes, bool kTiled>
__device__ __forceinline__ void Multiply(PartMultiplier<kSlotBytes, kTiled>& multiplier,
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
    if constexpr (kExperts) {
      // Activations are sent weighted: what is left is one product over all ranks.
      if (part.matrix.by_rank) {
        value *= ExpertState().choice.weights[part.rank];
        first += part.rank * part.up_offset;
      }
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
  constexpr bool kExperts = kIsExpertTuning<kTuning>;
  constexpr bool kTiled = kIsTiledTuning<kTuning>;
  constexpr ResidentTuning kConstants = kResidentTunings[kTuning];
  constexpr int kQuads = kConstants.max_hidden / (4 * kResidentWorkers);
  const PreparedPhase& prepared = Prepared(idx);
  const ResidentPhase& phase = prepared.phase;
  // The experts' gate and up read what their dense branch's have left.
  const bool has_input = kExperts && prepared.part.matrix.by_rank;
  std::byte* const input = has_input ? ExpertState().input() : Input();
  PartMultiplier<kConstants.slot_bytes, kTiled> multiplier(TheRing<kConstants.slot_bytes>(),
                                                           StateOfWarp().team, prepared.part,
                                                           prepared.num_tiles, input);
  if (phase.reads_residual) {
    if constexpr (kExperts) {
      UpdateResidualWithExperts<kQuads, kTiled>(phase, ExpertState().phases[idx % kPreparedPhases],
                                                number - 1);
    } else {
      UpdateResidual<kQuads, kTiled>(phase, number - 1);
    }
  } else if (!has_input) {
    ReceiveInput<kConstants.receive_quads, kTiled>(
        phase, phase.attention.head_dim != 0 ? number : number - 1);
  }
  if (phase.matrix.in_dim % kChunkValues != 0) {
    PadInput(input, ThreadOfPhase(), phase.matrix.in_dim);
  }
  SyncWorkers();
  Multiply<kExperts>(multiplier, prepared, number);
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

// One warp, for the gate and up of experts: which ones.
__device__ __forceinline__ void ChooseForPhase(int idx, uint32_t first_number) {
  // The logits are on their way once this block is done with what the router's phase reads.
  const int before = idx - kPhasesToChoice - 1;
  AwaitBarrier(SharedAddress(State().finished) + before % kPreparedPhases * 8,
               ParityOfPhase(before));
  ResidentExpertState& state = ExpertState();
  MakeChoice(state.phases[idx % kPreparedPhases], State().program.num_experts,
             State().program.num_ranks, first_number + idx - kPhasesToChoice, state.choice);
  if (threadIdx.x % 32 == 0) ArriveAtBarrier(SharedAddress(&state.choice.made));
}

// One warp: whatever can be done for a phase before it begins.
template <bool kExperts>
__device__ __forceinline__ void PreparePhases() {
  const auto* program = static_cast<const ResidentProgram*>(State().params.call.program);
  const int lane = threadIdx.x % 32;
  constexpr int kPieces = sizeof(ResidentPhase) / 16;
  constexpr int kExpertPieces = kExperts ? sizeof(ResidentExperts) / 16 : 0;
  static_assert(sizeof(ResidentPhase) % 16 == 0 && kPieces + kExpertPieces <= 32);
  const bool is_of_experts = lane >= kPieces && lane < kPieces + kExpertPieces;
  const auto load = [&](int idx) {
    if (idx >= State().program.num_phases) return uint4{};
    if (is_of_experts) {
      return __ldg(reinterpret_cast<const uint4*>(program->experts() + idx) + lane - kPieces);
    }
    return lane < kPieces ? __ldg(reinterpret_cast<const uint4*>(program->phases() + idx) + lane)
                          : uint4{};
  };
  const uint32_t first_number = __ldcg(State().program.number) + 1;
  uint4 next = load(0);
#pragma unroll 1
  for (int idx = 0; idx < State().program.num_phases; ++idx) {
    PreparedPhase& prepared = Prepared(idx);
    const uint32_t place = idx % kPreparedPhases * 8;
    AwaitBarrier(SharedAddress(State().finished) + place, ParityOfPhase(idx) ^ 1);
    if (lane < kPieces) reinterpret_cast<uint4*>(&prepared.phase)[lane] = next;
    if constexpr (kExperts) {
      auto* experts = reinterpret_cast<uint4*>(ExpertState().phases + idx % kPreparedPhases);
      if (is_of_experts) experts[lane - kPieces] = next;
    }
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
    if constexpr (kExperts) {
      if (phase.matrix.by_rank) ChooseForPhase(idx, first_number);
    }
    __syncwarp();
    if (lane == 0) ArriveAtBarrier(SharedAddress(State().prepared) + place);
  }
}

// What the computing warps do.
template <int kTuning>
__device__ __forceinline__ void Work() {
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
  const auto* program = static_cast<const ResidentProgram*>(State().params.call.program);
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
  constexpr bool kExperts = kIsExpertTuning<kTuning>;
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
    if constexpr (kExperts) InitBarrier(SharedAddress(&ExpertState().choice.made), 1);
    PublishBarriers();
  }
  // What the host has written for this step was there before the first of its kernels.
  if (threadIdx.x >= 32 && threadIdx.x < 32 + kNumKvGroups) {
    const int group = static_cast<int>(threadIdx.x) - 32;
    const AttentionSequence sequence = *params.call.sequences[group];
    const ResidentKvGroup layers =
        static_cast<const ResidentProgram*>(params.call.program)->groups[group];
    State().sequences[group] = {sequence.num_cached, sequence.table_base};
    if (layers.num_heads > 0) {
      State().plans[group] = SplitPlan(layers, sequence.first_position,
                                       MostRoundKeys<kConstants.slot_bytes>(layers.entry_len));
    }
  }
  // What stands for keys behind the last one counts for nothing, but must be numbers.
  constexpr int kMadeVectors = sizeof(ResidentEntries::made) / sizeof(uint4);
  static_assert(kMadeVectors <= kResidentWorkers);
  if (threadIdx.x < kMadeVectors) {
    reinterpret_cast<uint4*>(State().entries.made)[threadIdx.x] = uint4{};
  }
  AllowNextKernel();
  __syncthreads();
  if (threadIdx.x >= kResidentWorkers + 32) {
    WaitForPreviousKernel();
    PreparePhases<kExperts>();
  } else if (threadIdx.x >= kResidentWorkers) {
    BringAll<kConstants.in_flight, kExperts>(
        TheRing<kConstants.slot_bytes>(), State().params.call, State().program.num_phases,
        State().plans, State().sequences, kExperts ? &ExpertState().choice : nullptr);
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
         WeightsAreResident(program) && GroupsAreUniform(program) && ExpertsAreUniform(program) &&
         ResidentExpertsFit(widths.num_experts, widths.num_ranks, widths.expert_width,
                            widths.hidden, num_blocks) &&
         (widths.num_experts == 0 || widths.ple_width == 0) && widths.max_kv_heads <= num_blocks &&
         widths.ple_width / num_blocks + (widths.tiled ? 8 : 2) <= kMaxMultipliers &&
         SharedLayout(widths, device.shared_bytes_per_block).num_slots >= kMinSlots;
}

void RunResidentStep(const LaunchContext& context, const ResidentWidths& widths,
                     const ResidentStepCall& call) {
  const DeviceInfo& device = context.Device();
  const KernelParams params{.call = call,
                            .shared = SharedLayout(widths, device.shared_bytes_per_block)};
  CHECK_GE(params.shared.num_slots, kMinSlots);
  CHECK_EQ(call.tokens_per_page[kFullGroup] % EntryRuns::kLongKeys, 0);
  const Kernel kernel = KernelFor(ResidentTuningOf(widths));
  Launch(context, kernel, dim3(ResidentBlocks(device, widths)), dim3(kResidentThreads),
         params.shared.total(), params);
}

}  // namespace lapidary::cuda
