#include "ops/cpu/dequantise.h"

#include "base/check.h"
#include "ops/cpu/code_scales.h"
#include "ops/cpu/thread_buffer.h"
#include "tensor/block_formats.h"
#include "tensor/decode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dequantise.cc"
// The order of these matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/unpack_blocks-inl.h"
#include "ops/cpu/unpack_codes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace lapidary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void DequantiseBlocks(DType dtype, const uint8_t* blocks, int64_t num_elements, float* out) {
  Dequantise(dtype, blocks, num_elements, out);
}

void DequantiseCodes(const MatrixRef& w, int64_t first, int64_t count, float* out) {
  for (int64_t row = 0; row < count; ++row) DecodeRow(w, first + row, out + row * w.cols);
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

// A row of pieces; scale(piece) is that of one.
template <typename Codes, class Scale>
void StoreCodes(const uint8_t* HWY_RESTRICT bytes, int64_t num_elements, const Scale& scale,
                float* HWY_RESTRICT out) {
  const codes::Floats d;
  for (int64_t at = 0; at < num_elements; at += kCodePiece, bytes += Codes::kBytes) {
    Codes::Unpack(bytes, hn::Set(d, scale(at)), [&](int first, codes::FloatVec weights) {
      hn::StoreU(weights, d, out + at + first);
    });
  }
}

void DequantiseCodes(const MatrixRef& w, int64_t first, int64_t count, float* out) {
  const int64_t num_scales = NumScales(w);
  static thread_local ThreadBuffer<float> buffer;
  ScaleTable table;
  int64_t table_end = 0;
  for (int64_t row = first; row < first + count; ++row, out += w.cols) {
    const uint8_t* const bytes = w.As<uint8_t>() + row * w.row_bytes();
    if (w.format.code == CodeType::kE4M3) {
      if (codes::HasNan(bytes, w.cols)) {
        DecodeRow(w, row, out);
        continue;
      }
      float* const scales = buffer.Get(num_scales);
      LoadScales(w, row, scales);
      const int64_t run_len = w.format.group.cols == 0 ? w.cols : w.format.group.cols;
      StoreCodes<codes::E4M3>(
          bytes, w.cols, [&](int64_t at) { return codes::E4M3::kScaleUnit * scales[at / run_len]; },
          out);
      continue;
    }
    if (row >= table_end) {
      MakeScaleTable(w, row, table);
      table_end = row + RowsOfTable(w, row, first + count);
    }
    const uint8_t* const scales = static_cast<const uint8_t*>(w.scales) + row * num_scales;
    StoreCodes<codes::E2M1>(
        bytes, w.cols, [&](int64_t at) { return table[scales[at / kCodePiece]]; }, out);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace lapidary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lapidary::cpu {

HWY_EXPORT(DequantiseBlocks);
HWY_EXPORT(DequantiseCodes);

void DequantiseRows(const MatrixRef& w, int64_t first, int64_t count, float* out) {
  CHECK(0 <= first && 0 <= count && first + count <= w.rows) << first << " + " << count;
  if (w.format.is_float_codes()) {
    if (HasCodePieces(w)) return HWY_DYNAMIC_DISPATCH(DequantiseCodes)(w, first, count, out);
    for (int64_t row = 0; row < count; ++row) DecodeRow(w, first + row, out + row * w.cols);
    return;
  }
  CHECK_EQ(w.cols % BlockOf(w.format.unit).elements, 0) << DTypeName(w.format.unit);
  HWY_DYNAMIC_DISPATCH(DequantiseBlocks)
  (w.format.unit, w.As<uint8_t>() + first * w.row_bytes(), count * w.cols, out);
}

}  // namespace lapidary::cpu
#endif  // HWY_ONCE
