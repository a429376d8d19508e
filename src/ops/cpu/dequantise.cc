#include "ops/cpu/dequantise.h"

#include "base/check.h"
#include "tensor/block_formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dequantise.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/unpack_blocks-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void DequantiseBlocks(DType dtype, const uint8_t* blocks, int64_t num_elements, float* out) {
  Dequantise(dtype, blocks, num_elements, out);
}

#else

template <typename Format>
void StoreBlocks(const uint8_t* HWY_RESTRICT bytes, int64_t num_elements, float* HWY_RESTRICT out) {
  const float* end = out + num_elements;
  for (; out < end; bytes += Format::kBytes) {
    const typename Format::Block block(bytes);
    for (int piece = 0; piece < Format::kElements / Format::kPiece; ++piece) {
      Format::Unpack(block, piece, [&](int first, unpack::FloatVec weights) {
        hn::StoreU(weights, unpack::Floats(), out + first);
      });
      out += Format::kPiece;
    }
  }
}

void DequantiseBlocks(DType dtype, const uint8_t* blocks, int64_t num_elements, float* out) {
  unpack::WithFormat(
      dtype, [&](auto format) { StoreBlocks<decltype(format)>(blocks, num_elements, out); });
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(DequantiseBlocks);

void DequantiseRows(const MatrixRef& w, int64_t first, int64_t count, float* out) {
  CHECK(0 <= first && 0 <= count && first + count <= w.rows) << first << " + " << count;
  CHECK_EQ(w.cols % BlockOf(w.format.unit).elements, 0) << DTypeName(w.format.unit);
  HWY_DYNAMIC_DISPATCH(DequantiseBlocks)
  (w.format.unit, w.As<uint8_t>() + first * w.row_bytes(), count * w.cols, out);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
