// What the architecture fixes, on every card that our kernels run on: they are compiled for sm_90a.
// For the shapes of kernels alone; what differs from card to card is in DeviceInfo.
#pragma once

namespace lapidary::cuda {

inline constexpr int kSm90SharedBytesPerSm = 228 * 1024;
inline constexpr int kSm90ReservedSharedBytes = 1024;  // of an SM's, for each of its blocks

}  // namespace lapidary::cuda
