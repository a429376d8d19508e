// The product of groups on Hopper, for many rows: weights by TMA, rows gathered by 128 threads,
// both through a ring in shared memory into wgmma. The weight's rows are the instruction's 64 rows,
// the group's its columns, so that a group of any size wastes little.
//
// For very many rows blocks work in pairs, on the same weight rows and two groups of the expert:
// each loads one box and gives it to both, as L2 hands out no more than so much.
//
// A block stays on its SM and takes tile after tile: 256 weight rows of an expert by a group, in
// two boxes. Two warpgroups have 64 weight rows of each box; of a gated product's sixteen eight are
// gate rows and eight the up rows to them, so that both meet in one thread. Every dot product is
// summed in the order of k, sixteen at a time, as in moe_product.cu: the results have the same
// bits.
#include <algorithm>

#include "base/check.h"
#include "ops/cuda/linear/tensor_map.h"
#include "ops/cuda/moe/moe_groups.h"
#include "ops/cuda/sm90.h"
#include "ops/cuda/staged_results.cuh"
#include "ops/cuda/vec.cuh"

namespace lapidary::cuda {
namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kConsumerThreads = kConsumers * kWarpgroupThreads;
constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;  // and those that load
constexpr int kBoxRows = kWarpgroupRows * kConsumers;           // of the weight, in one copy
constexpr int kBoxBytes = kBoxRows * kSwizzledRowBytes;
constexpr int kMaxBoxes = 2;                         // of a tile
constexpr int kWeightBytes = kMaxBoxes * kBoxBytes;  // of a stage
constexpr int kMostRows = 160;                       // of a group
constexpr int kMaxSharedBytes = kSm90SharedBytesPerSm - kSm90ReservedSharedBytes;

// Shared memory: barriers, the ring of stages (weight [256][64], rows [kRows][64], both swizzled),
// and for each warpgroup results of a box on their way out.
template <int kRowsOfGroup, int kClusterOfKernel>
struct Layout {
  static constexpr int kRows = kRowsOfGroup;  // at most, of a group
  static constexpr int kCluster = kClusterOfKernel;
  static constexpr int kStageBytes = kWeightBytes + kRows * kSwizzledRowBytes;
  static constexpr int kStagingBytes = kStagedBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kBarrierBytes = 256;
  static constexpr int kFree =
      kMaxSharedBytes - kAlignment - kBarrierBytes - kConsumers * kStagingBytes;
  static constexpr int kStages = kFree / kStageBytes < 8 ? kFree / kStageBytes : 8;
  static constexpr int kStagingAt = kStages * kStageBytes;
  static constexpr int kSharedBytes = kStagingAt + kConsumers * kStagingBytes + kAlignment;
};

// Shared memory addresses.
struct Ring {
  uint32_t stages;
  uint32_t full;   // barriers: the weight and every loading thread's rows are there
  uint32_t empty;  // every consuming warp is done
};

template <bool kGated>
constexpr int kBoxFeatures = kGated ? kBoxRows / 2 : kBoxRows;

// A tile: some features of an expert, and the block's group. In a gated product a feature has two
// weight rows.
struct ProductTile {
  RowGroup group;
  int first_feature;
  int num_boxes;
};

// The tiles of a cluster: every step()-th from first() on. Tiles of a group (or two) lie beside
// each other, so that what they share is found in L2. Those of one box, at the end of the features,
// come last: then blocks are done at about the same time.
template <int kCluster>
class TileList {
 public:
  __device__ __forceinline__ TileList(const GroupProduct& p, int box_features)
      : groups_(p.groups), box_features_(box_features) {
    const int num_boxes = (p.out_dim + box_features - 1) / box_features;
    large_of_group_ = num_boxes / kMaxBoxes;
    const int num_groups = __ldcg(p.num_groups) / kCluster;
    num_large_ = num_groups * large_of_group_;
    num_tiles_ = num_large_ + num_boxes % kMaxBoxes * num_groups;
  }

  __device__ __forceinline__ int first() const { return blockIdx.x / kCluster; }
  __device__ __forceinline__ int step() const { return gridDim.x / kCluster; }
  __device__ __forceinline__ int size() const { return num_tiles_; }

  __device__ __forceinline__ ProductTile operator[](int idx) const {
    if (idx >= num_tiles_) return {};
    const bool is_large = idx < num_large_;
    const int group = (is_large ? idx / large_of_group_ : idx - num_large_) * kCluster +
                      static_cast<int>(blockIdx.x % kCluster);
    const int of_group = is_large ? idx % large_of_group_ : large_of_group_;
    const int4 words = __ldcg(reinterpret_cast<const int4*>(groups_ + group));
    return {.group = {words.x, words.y, words.z, words.w},
            .first_feature = of_group * kMaxBoxes * box_features_,
            .num_boxes = is_large ? kMaxBoxes : 1};
  }

 private:
  const RowGroup* groups_;
  int box_features_;
  int large_of_group_;
  int num_large_;
  int num_tiles_;
};

// ---- loading -----------------------------------------------------------------------------------

template <typename T, bool kGated>
class Loader {
 public:
  __device__ __forceinline__ Loader(const CUtensorMap& map, const GroupProduct& p, const Ring& ring)
      : map_(map),
        p_(p),
        ring_(ring),
        thread_(threadIdx.x - kConsumerThreads),
        vector_(thread_ % kVectors),
        first_row_(thread_ / kVectors),
        num_k_blocks_((p.in_dim + kSwizzledRowValues - 1) / kSwizzledRowValues) {}

  // The weights of the first stages, before the rows are there.
  __device__ __forceinline__ void StartWeights(const TileList<T::kCluster>& tiles) {
    const ProductTile tile = tiles[tiles.first()];
    if (tile.num_boxes == 0) return;
    num_early_ = min(T::kStages, num_k_blocks_);
    if (thread_ != 0) return;
    for (int k = 0; k < num_early_; ++k) LoadWeight(tile, k, k);
  }

  __device__ __forceinline__ void Run(const TileList<T::kCluster>& tiles) {
    for (int idx = tiles.first(); idx < tiles.size(); idx += tiles.step()) {
      const ProductTile tile = tiles[idx];
      FindRows(tile.group);
      for (int k = 0; k < num_k_blocks_; ++k) {
        AwaitBarrier(ring_.empty + 8 * at_.slot, at_.parity ^ 1);
        if (num_early_ > 0) {
          --num_early_;
        } else if (thread_ == 0) {
          LoadWeight(tile, k, at_.slot);
        }
        LoadRows(k);
        ArriveAfterCopies(ring_.full + 8 * at_.slot);
        at_.Advance(T::kStages);
      }
    }
  }

 private:
  static constexpr int kVectors = 8;  // of a row of a stage
  static constexpr int kRowsApart = kWarpgroupThreads / kVectors;
  static constexpr int kCopies = T::kRows / kRowsApart;

  __device__ __forceinline__ void LoadWeight(const ProductTile& tile, int k, int slot) const {
    const uint32_t barrier = ring_.full + 8 * slot;
    ExpectBytes(barrier, tile.num_boxes * kBoxBytes);
    const auto block = [&](int box) {
      return (tile.first_feature + box * kBoxFeatures<kGated>) / 8;
    };
    const auto place = [&](int box) {
      return ring_.stages + slot * T::kStageBytes + box * kBoxBytes;
    };
    const int column = k * kSwizzledRowValues;
    if constexpr (T::kCluster == 1) {
      for (int box = 0; box < tile.num_boxes; ++box) {
        CopyExpertRows(map_, tile.group.expert, block(box), column, place(box), barrier,
                       BoxUse::kNormal);
      }
    } else {
      static_assert(T::kCluster == kMaxBoxes);
      const int box = static_cast<int>(blockIdx.x % T::kCluster);
      if (box >= tile.num_boxes) return;
      CopyExpertRowsToBlocks(map_, tile.group.expert, block(box), column, place(box), barrier,
                             (1 << T::kCluster) - 1, BoxUse::kNormal);
    }
  }

  __device__ __forceinline__ void FindRows(const RowGroup& group) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int idx = first_row_ + kRowsApart * i;
      sources_[i] = -1;
      if (idx < group.count) {
        const int position = group.begin + idx;
        sources_[i] =
            (kGated ? __ldcg(p_.order + position) / p_.top_k : position) * p_.in_dim + 8 * vector_;
      }
    }
  }

  // Rows that the group has not are left as they are: what comes of them is not stored.
  __device__ __forceinline__ void LoadRows(int k) const {
    const bool inside = k * kSwizzledRowValues + 8 * vector_ < p_.in_dim;
    const uint32_t to = ring_.stages + at_.slot * T::kStageBytes + kWeightBytes +
                        first_row_ * kSwizzledRowBytes + ((vector_ ^ (first_row_ % 8)) * 16);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (sources_[i] < 0) break;
      CopyAsync(to + i * kRowsApart * kSwizzledRowBytes,
                inside ? p_.in + sources_[i] + k * kSwizzledRowValues : p_.in, inside);
    }
  }

  const CUtensorMap& map_;
  const GroupProduct& p_;
  const Ring& ring_;
  const int thread_;
  const int vector_;
  const int first_row_;
  const int num_k_blocks_;
  int num_early_ = 0;
  int sources_[kCopies];  // where each row begins in the input, in values. -1: there is none
  RingPosition at_;
};

// ---- multiplying -------------------------------------------------------------------------------

template <typename T, bool kGated>
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const GroupProduct& p, const Ring& ring)
      : p_(p),
        ring_(ring),
        warpgroup_(threadIdx.x / kWarpgroupThreads),
        thread_(threadIdx.x % kWarpgroupThreads),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        num_k_blocks_((p.in_dim + kSwizzledRowValues - 1) / kSwizzledRowValues),
        staging_(ring.stages + T::kStagingAt + warpgroup_ * T::kStagingBytes) {}

  __device__ __forceinline__ void Run(const TileList<T::kCluster>& tiles) {
    ProductTile tile = tiles[tiles.first()];
    for (int idx = tiles.first(); idx < tiles.size(); idx += tiles.step()) {
      const ProductTile next = tiles[idx + tiles.step()];
      if (tile.num_boxes == kMaxBoxes) {
        RunBoxes<kMaxBoxes>(tile);
      } else {
        RunBoxes<1>(tile);
      }
      tile = next;
    }
  }

 private:
  template <int kBoxes>
  __device__ __forceinline__ void RunBoxes(const ProductTile& tile) {
    switch ((tile.group.count + 15) / 16) {
      case 0:  // of two groups the second may be empty
      case 1:
        return RunTile<kBoxes, 16>(tile);
      case 2:
        return RunTile<kBoxes, 32>(tile);
      case 3:
        return RunTile<kBoxes, 48>(tile);
      case 4:
        return RunTile<kBoxes, 64>(tile);
    }
    if constexpr (T::kRows > 64) {
      switch ((tile.group.count + 15) / 16) {
        case 5:
          return RunTile<kBoxes, 80>(tile);
        case 6:
          return RunTile<kBoxes, 96>(tile);
        case 7:
          return RunTile<kBoxes, 112>(tile);
        case 8:
          return RunTile<kBoxes, 128>(tile);
        case 9:
          return RunTile<kBoxes, 144>(tile);
        default:
          return RunTile<kBoxes, 160>(tile);
      }
    }
  }

  template <int kBoxes, int kColumns>
  __device__ __forceinline__ void RunTile(const ProductTile& tile) {
    float acc[kBoxes][kColumns / 2];
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (float& value : acc[box]) value = 0.0f;
    }
    int last_slot = -1;
    for (int k = 0; k < num_k_blocks_; ++k) {
      AwaitBarrier(ring_.full + 8 * at_.slot, at_.parity);
      PublishToCopies();  // to wgmma, what other threads' CopyAsync stored
      const uint32_t stage = ring_.stages + at_.slot * T::kStageBytes;
      const uint64_t a = SwizzledOperand(stage + warpgroup_ * 64 * kSwizzledRowBytes);
      const uint64_t b = SwizzledOperand(stage + kWeightBytes);
      WgmmaBegin();
#pragma unroll
      for (int step = 0; step < kSwizzledRowValues / 16; ++step) {
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
          Wgmma<kColumns>::Run(acc[box], a + 2 * step + box * (kBoxBytes / 16), b + 2 * step);
        }
      }
      WgmmaCommit();
      // All but the newest are done, so the slot before is free.
      WgmmaWait<1>();
      if (last_slot >= 0) Release(last_slot);
      last_slot = at_.slot;
      at_.Advance(T::kStages);
    }
    constexpr int kPieces = (kColumns + kStagedRows - 1) / kStagedRows;
    int32_t targets[kPieces][kStagedRows / kRowsApart];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      FindTargets(tile.group, piece * kStagedRows, targets[piece]);
    }
    WgmmaWait<0>();
    Release(last_slot);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) WgmmaKeep(acc[box]);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        SyncWarpgroup();  // the staging is free
        Staged::template Stage<kColumns>(staging_, warp_, lane_, acc[box], piece * kStagedRows);
        SyncWarpgroup();
        StoreResults(targets[piece], tile.group.count - piece * kStagedRows,
                     tile.first_feature + box * kBoxFeatures<kGated> + warpgroup_ * kFeatures);
      }
    }
  }

  // The slot may be loaded again, by each block of the cluster.
  __device__ __forceinline__ void Release(int slot) const {
    const uint32_t barrier = ring_.empty + 8 * slot;
    if constexpr (T::kCluster == 1) {
      if (lane_ == 0) ArriveAtBarrier(barrier);
    } else {
      if (lane_ < T::kCluster) ArriveInBlock(AddressInBlock(barrier, lane_));
    }
  }

  using Staged = StagedResults<kGated>;
  static constexpr int kFeatures = Staged::kFeatures;  // of a box
  static constexpr int kVectors = Staged::kVectors;
  static constexpr int kRowsApart = kWarpgroupThreads / kVectors;  // of those that a thread stores

  __device__ __forceinline__ void SyncWarpgroup() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup_), "n"(kWarpgroupThreads) : "memory");
  }

  // The rows of the output that this thread stores to, of those staged from `first` on.
  template <int kCount>
  __device__ __forceinline__ void FindTargets(const RowGroup& group, int first,
                                              int32_t (&targets)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = first + thread_ / kVectors + i * kRowsApart;
      targets[i] = group.begin + row;
      if constexpr (!kGated) {
        if (row < group.count) targets[i] = __ldcg(p_.order + targets[i]);
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ void StoreResults(const int32_t (&targets)[kCount], int count,
                                               int first_feature) const {
    const int vector = thread_ % kVectors;
    const int feature = first_feature + 8 * vector;
    if (feature >= p_.out_dim) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = thread_ / kVectors + i * kRowsApart;
      if (row >= count) break;
      *reinterpret_cast<uint4*>(p_.out + int64_t{targets[i]} * p_.out_dim + feature) =
          LoadShared(staging_ + Staged::VectorOffset(row, vector));
    }
  }

  const GroupProduct& p_;
  const Ring& ring_;
  const int warpgroup_;
  const int thread_;
  const int warp_;
  const int lane_;
  const int num_k_blocks_;
  const uint32_t staging_;
  RingPosition at_;
};

template <typename T, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    HopperProductKernel(const __grid_constant__ CUtensorMap map,
                        const __grid_constant__ GroupProduct p) {
  extern __shared__ unsigned char dynamic_shared[];
  __shared__ uint64_t barriers[2 * T::kStages];
  static_assert(sizeof(barriers) <= T::kBarrierBytes);
  // The next kernel of a gated one is the other, which reads the groups early: it may start when
  // they are there.
  if constexpr (kGated) WaitForPreviousKernel();
  AllowNextKernel();
  const Ring ring = {.stages = (SharedAddress(dynamic_shared) + T::kAlignment - 1) &
                               ~static_cast<uint32_t>(T::kAlignment - 1),
                     .full = SharedAddress(barriers),
                     .empty = SharedAddress(barriers) + 8 * T::kStages};
  if (threadIdx.x == 0) {
    PrefetchMap(map);
    for (int stage = 0; stage < T::kStages; ++stage) {
      InitBarrier(ring.full + 8 * stage, 1 + kWarpgroupThreads);
      InitBarrier(ring.empty + 8 * stage, T::kCluster * kConsumerThreads / 32);
    }
    PublishBarriers();
  }
  if constexpr (T::kCluster == 1) {
    __syncthreads();
  } else {
    SyncCluster();
  }
  const TileList<T::kCluster> tiles(p, kBoxFeatures<kGated>);
  if (threadIdx.x >= kConsumerThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    Loader<T, kGated> loader(map, p, ring);
    if constexpr (!kGated) {
      loader.StartWeights(tiles);
      WaitForPreviousKernel();
    }
    loader.Run(tiles);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    if constexpr (!kGated) WaitForPreviousKernel();
    Multiplier<T, kGated>(p, ring).Run(tiles);
  }
  // What others send to this block has arrived.
  if constexpr (T::kCluster > 1) SyncCluster();
}

template <typename T>
void RunLayout(const LaunchContext& context, const GroupProduct& product, bool gated) {
  const int64_t tile_features = kMaxBoxes * (gated ? kBoxFeatures<true> : kBoxFeatures<false>);
  const int64_t max_tiles =
      product.max_groups * ((product.out_dim + tile_features - 1) / tile_features);
  const int64_t at_once = context.Device().cluster_blocks[T::kCluster] / T::kCluster;
  const dim3 grid(static_cast<unsigned>(std::min(max_tiles, at_once) * T::kCluster));
  const CUtensorMap map = MakeExpertMap(product.weight, product.num_experts, gated ? 2 : 1,
                                        product.out_dim, product.in_dim);
  LaunchClusters(context, gated ? HopperProductKernel<T, true> : HopperProductKernel<T, false>,
                 T::kCluster, grid, dim3(kThreads), T::kSharedBytes, map, product);
}

}  // namespace

void RunHopperProduct(const LaunchContext& context, const GroupProduct& product, bool gated) {
  CHECK_LE(product.rows_per_group, kMostRows);
  if (product.in_pairs) {
    RunLayout<Layout<kMostRows, 2>>(context, product, gated);
  } else if (product.rows_per_group <= 64) {
    RunLayout<Layout<64, 1>>(context, product, gated);
  } else {
    RunLayout<Layout<kMostRows, 1>>(context, product, gated);
  }
}

}  // namespace lapidary::cuda
