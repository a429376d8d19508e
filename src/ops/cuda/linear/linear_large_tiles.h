// The tiles of linear_large.h in numbers: what its planning and its kernel agree on.
#pragma once

#include "base/host_device.h"
#include "ops/cuda/sm90.h"

namespace lapidary::cuda {

inline constexpr int kLargeKBlock = 64;    // values of k of a stage
inline constexpr int kLargeBoxRows = 128;  // weight rows of one copy
inline constexpr int kLargeThreads = 3 * 128;
inline constexpr int kLargeConsumers = 2 * 128;  // threads that multiply
inline constexpr int kMinLargeColumns = 112;
inline constexpr int kMaxLargeColumns = 208;

// Results that a warpgroup has on their way out (staged_results.cuh).
inline constexpr int kLargeStagingBytes = 64 * 64 * 2;

// Weight [boxes * 128][64] and x [columns][64] of one stage.
LAPIDARY_HOST_DEVICE constexpr int LargeStageBytes(int boxes, int columns) {
  return (boxes * kLargeBoxRows + columns) * kLargeKBlock * 2;
}
LAPIDARY_HOST_DEVICE constexpr int LargeStages(int boxes, int columns) {
  constexpr int kStatic = 256;  // barriers
  constexpr int kAlignment = 1024;
  constexpr int kFree = kSm90SharedBytesPerSm - kSm90ReservedSharedBytes - kStatic - kAlignment -
                        2 * kLargeStagingBytes;
  const int stages = kFree / LargeStageBytes(boxes, columns);
  return stages < 8 ? stages : 8;
}
constexpr int LargeSharedBytes(int boxes, int columns) {
  return LargeStages(boxes, columns) * LargeStageBytes(boxes, columns) + 2 * kLargeStagingBytes +
         1024;
}

// Columns are finished in groups of eight; of a split, block `rank` finishes those from here on.
LAPIDARY_HOST_DEVICE constexpr int LargeFirstGroup(int groups, int split, int rank) {
  return rank * groups / split;
}
// What the other blocks of a split send to one: from each the sums of its groups, 16 bytes a
// thread and box. It comes to where the stages were.
LAPIDARY_HOST_DEVICE constexpr int LargeReceivedBytes(int boxes, int columns, int split) {
  const int groups = (columns / 8 + split - 1) / split;
  return (split - 1) * groups * boxes * kLargeConsumers * 16;
}
constexpr bool LargeSplitFits(int boxes, int columns, int split) {
  return LargeReceivedBytes(boxes, columns, split) <=
         LargeStages(boxes, columns) * LargeStageBytes(boxes, columns);
}

}  // namespace lapidary::cuda
