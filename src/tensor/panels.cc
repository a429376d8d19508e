#include "tensor/panels.h"

#include <cstring>

#include "base/check.h"
#include "tensor/block_formats.h"

namespace lapidary {
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

// A block of Q4_0, Q4_1 or Q8_0: its halves and codes lie as a panel's row has them, four bytes
// apart from the next ones.
void CopyRow(DType from, const uint8_t* block, int row, uint8_t* out) {
  const int num_halves = from == DType::kQ4_1 ? 2 : 1;
  const int num_groups = from == DType::kQ8_0 ? 8 : 4;
  for (int half = 0; half < num_halves; ++half) {
    std::memcpy(out + (half * kPanelRows + row) * kHalfBytes, block + half * kHalfBytes,
                kHalfBytes);
  }
  block += num_halves * kHalfBytes;
  out += num_halves * kPanelRows * kHalfBytes;
  for (int group = 0; group < num_groups; ++group) {
    std::memcpy(out + (group * kPanelRows + row) * kGroup, block + group * kGroup, kGroup);
  }
}

// A block of Q4_K, whose runs of 32 are the low or the high halves of 32 bytes, to 8 blocks of a
// panel.
void StoreQ4K(const uint8_t* block, int row, int64_t block_bytes, uint8_t* out) {
  uint16_t units[2];
  std::memcpy(units, block, sizeof(units));
  const KScales scales = UnpackKScales(block + 4);
  for (int run = 0; run < 8; ++run, out += block_bytes) {
    StoreHalf(F16ToFloat(units[0]) * static_cast<float>(scales.scale[run]), row, out);
    StoreHalf(-(F16ToFloat(units[1]) * static_cast<float>(scales.min[run])), row,
              out + kPanelRows * kHalfBytes);
    const uint8_t* bytes = block + 16 + run / 2 * 32;
    for (int group = 0; group < 4; ++group) {
      const uint32_t first = LoadFour(bytes + group * kGroup) >> run % 2 * 4 & 0x0f0f0f0f;
      const uint32_t second = LoadFour(bytes + 16 + group * kGroup) >> run % 2 * 4 & 0x0f0f0f0f;
      const uint32_t four = first | second << 4;
      std::memcpy(out + 2 * kPanelRows * kHalfBytes + (group * kPanelRows + row) * kGroup, &four,
                  sizeof(four));
    }
  }
}

float LoadHalf(const uint8_t* halves, int row) {
  uint16_t bits;
  std::memcpy(&bits, halves + row * kHalfBytes, sizeof(bits));
  return F16ToFloat(bits);
}

// Code `idx` of a row in a block whose codes begin at `codes`.
int LoadCode(DType dtype, const uint8_t* codes, int row, int idx) {
  const int half = idx / 16;
  const int group = idx % 16 / kGroup;
  const auto byte = [&](int place) {
    return int{codes[(place * kPanelRows + row) * kGroup + idx % kGroup]};
  };
  if (dtype == DType::kPanel8) return static_cast<int8_t>(byte(idx / kGroup));
  const int low = byte(group) >> 4 * half & 15;
  const bool has_top = dtype == DType::kPanel6Min || dtype == DType::kPanel6Fine;
  return has_top ? low | (byte(4 + half) >> 2 * group & 3) << 4 : low;
}

int ZeroOf(DType from) {
  switch (from) {
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    default:
      return 0;
  }
}

}  // namespace

void RepackPanels(const MatrixRef& w, int64_t begin, int64_t end, std::byte* panels) {
  CHECK(begin % kPanelRows == 0 && end % kPanelRows == 0 && end <= w.rows) << begin << " " << end;
  const DType from = w.format.unit;
  const DType to = PanelDType(from);
  const DTypeBlock from_block = BlockOf(from);
  const int zero = ZeroOf(from);
  const int64_t block_bytes = int64_t{BlockOf(to).bytes} * kPanelRows;
  const int64_t row_bytes = w.row_bytes();
  for (int64_t panel = begin; panel < end; panel += kPanelRows) {
    auto* out = reinterpret_cast<uint8_t*>(panels) + DTypeBytes(to, panel * w.cols);
    const std::byte* first = w.As<std::byte>() + panel * row_bytes;  // block of the first row
    for (int64_t col = 0; col < w.cols; col += from_block.elements, first += from_block.bytes) {
      for (int row = 0; row < kPanelRows; ++row) {
        const std::byte* at = first + row * row_bytes;
        const auto* block = reinterpret_cast<const uint8_t*>(at);
        if (from == DType::kQ4_0 || from == DType::kQ4_1 || from == DType::kQ8_0) {
          CopyRow(from, block, row, out);
        } else if (from == DType::kQ4_K) {
          StoreQ4K(block, row, block_bytes, out);
        } else {
          const UnpackedBlock source = UnpackBlock(from, at);
          for (int idx = 0; idx < from_block.elements / kPanelBlock; ++idx) {
            StoreRow(to, source, from_block.elements, idx * kPanelBlock, zero, row,
                     out + idx * block_bytes);
          }
        }
      }
      out += from_block.elements / kPanelBlock * block_bytes;
    }
  }
}

void UnpackPanelRow(const MatrixRef& panels, int64_t row, float* out) {
  const DType dtype = panels.format.unit;
  CHECK(IsPanelDType(dtype)) << DTypeName(dtype);
  const bool is_fine = dtype == DType::kPanel6Fine;
  const bool has_offset = dtype == DType::kPanel4Min || dtype == DType::kPanel6Min;
  const int zero = dtype == DType::kPanel4 ? 8 : is_fine ? 32 : 0;
  const int64_t block_bytes = int64_t{BlockOf(dtype).bytes} * kPanelRows;
  const int lane = static_cast<int>(row % kPanelRows);
  const auto* block = panels.As<uint8_t>() + DTypeBytes(dtype, (row - lane) * panels.cols);
  for (int64_t col = 0; col < panels.cols; col += kPanelBlock, block += block_bytes) {
    const uint8_t* second = block + kPanelRows * kHalfBytes;
    const uint8_t* codes = is_fine || has_offset ? second + kPanelRows * kHalfBytes : second;
    for (int idx = 0; idx < kPanelBlock; ++idx) {
      const float scale = LoadHalf(is_fine && idx >= 16 ? second : block, lane);
      const float value = scale * static_cast<float>(LoadCode(dtype, codes, lane, idx) - zero);
      out[col + idx] = has_offset ? value + LoadHalf(second, lane) : value;
    }
  }
}

}  // namespace lapidary
