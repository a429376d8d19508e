#include "ops/cpu/panels.h"

#include <cstring>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace lapidary::cpu {
namespace {

constexpr int kHalfBytes = 2;
constexpr int kGroup = 4;  // elements that one instruction adds up

void StoreHalf(float value, int row, uint8_t* halves) {
  const uint16_t bits = FloatToF16(value);
  std::memcpy(halves + row * kHalfBytes, &bits, sizeof(bits));
}

uint32_t LoadFour(const uint8_t* codes) {
  uint32_t four;
  std::memcpy(&four, codes, sizeof(four));
  return four;
}

// Codes of one row of the panel, four at a time.
void StoreSmall(const uint8_t* codes, int row, bool has_top, uint8_t* out) {
  constexpr int kRowBytes = kPanelRows * kGroup;
  const auto store = [&](int place, uint32_t four) {
    std::memcpy(out + place * kRowBytes + row * kGroup, &four, sizeof(four));
  };
  uint32_t top[2] = {0, 0};
  for (int group = 0; group < 4; ++group) {
    const uint32_t first = LoadFour(codes + group * kGroup);
    const uint32_t second = LoadFour(codes + 16 + group * kGroup);
    store(group, (first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4);
    top[0] |= (first >> 4 & 0x03030303) << 2 * group;
    top[1] |= (second >> 4 & 0x03030303) << 2 * group;
  }
  if (!has_top) return;
  store(4, top[0]);
  store(5, top[1]);
}

// Elements [first, first + 32) of a row's block that was taken apart. `zero`: the code that stands
// for 0 is by so much larger than the source's.
void StoreRow(DType dtype, const UnpackedBlock& source, int num_elements, int first, int zero,
              int row, uint8_t* block) {
  const int run = first / (num_elements / source.num_runs);
  uint8_t* codes = block + kPanelRows * kHalfBytes;
  StoreHalf(source.scale[run], row, block);
  if (dtype == DType::kPanel6Fine) {
    StoreHalf(source.scale[run + 1], row, codes);
    codes += kPanelRows * kHalfBytes;
  } else if (dtype == DType::kPanel4Min || dtype == DType::kPanel6Min) {
    // Q5_0 has no offset but one code for 0.
    StoreHalf(source.offset[run] - source.scale[run] * static_cast<float>(zero), row, codes);
    codes += kPanelRows * kHalfBytes;
  }
  uint8_t moved[kPanelBlock];
  for (int idx = 0; idx < kPanelBlock; ++idx) {
    moved[idx] = static_cast<uint8_t>(source.q[first + idx] + zero);
  }
  if (dtype == DType::kPanel8) {
    for (int group = 0; group < kPanelBlock / kGroup; ++group) {
      std::memcpy(codes + (group * kPanelRows + row) * kGroup, moved + group * kGroup, kGroup);
    }
  } else {
    StoreSmall(moved, row, dtype == DType::kPanel6Min || dtype == DType::kPanel6Fine, codes);
  }
}

int ZeroOf(DType from) {
  switch (from) {
    case DType::kQ4_0:
      return 8;
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

}  // namespace

DType PanelTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return DType::kPanel4;
    case DType::kQ4_1:
    case DType::kQ4_K:
      return DType::kPanel4Min;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
      return DType::kPanel6Min;
    case DType::kQ6_K:
      return DType::kPanel6Fine;
    default:
      CHECK(dtype == DType::kQ8_0 || dtype == DType::kIQ4_NL || dtype == DType::kIQ4_XS)
          << DTypeName(dtype) << " has no blocks";
      return DType::kPanel8;
  }
}

void RepackPanels(const MatrixRef& w, int64_t begin, int64_t end, std::byte* panels) {
  CHECK(begin % kPanelRows == 0 && end % kPanelRows == 0 && end <= w.rows) << begin << " " << end;
  const DType to = PanelTypeOf(w.dtype);
  const DTypeBlock from_block = BlockOf(w.dtype);
  const int zero = ZeroOf(w.dtype);
  const int64_t block_bytes = int64_t{BlockOf(to).bytes} * kPanelRows;
  for (int64_t panel = begin; panel < end; panel += kPanelRows) {
    auto* out = reinterpret_cast<uint8_t*>(panels) + DTypeBytes(to, panel * w.cols);
    for (int64_t col = 0; col < w.cols; col += from_block.elements) {
      for (int row = 0; row < kPanelRows; ++row) {
        const UnpackedBlock source = UnpackBlock(
            w.dtype, w.As<std::byte>() + (panel + row) * w.row_bytes() + DTypeBytes(w.dtype, col));
        for (int idx = 0; idx < from_block.elements / kPanelBlock; ++idx) {
          StoreRow(to, source, from_block.elements, idx * kPanelBlock, zero, row,
                   out + idx * block_bytes);
        }
      }
      out += from_block.elements / kPanelBlock * block_bytes;
    }
  }
}

}  // namespace lapidary::cpu
