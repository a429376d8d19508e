#include "tensor/block_formats.h"

#include <cstring>

#include "base/check.h"

namespace lapidary {
namespace {

// Walks the fields of a block.
class BlockFields {
 public:
  explicit BlockFields(const std::byte* block) : next_(reinterpret_cast<const uint8_t*>(block)) {}
  const uint8_t* Bytes(int count) {
    const uint8_t* field = next_;
    next_ += count;
    return field;
  }
  uint16_t Word() {
    const uint8_t* field = Bytes(2);
    return static_cast<uint16_t>(field[0] | field[1] << 8);
  }
  float Half() { return F16ToFloat(Word()); }

 private:
  const uint8_t* next_;
};

// 2 * count codes: the low halves of the bytes, then the high ones.
void UnpackNibbles(const uint8_t* bytes, int count, int8_t* codes) {
  for (int idx = 0; idx < count; ++idx) {
    codes[idx] = static_cast<int8_t>(bytes[idx] & 15);
    codes[idx + count] = static_cast<int8_t>(bytes[idx] >> 4);
  }
}

// d, [m,] [32 fifth bits,] 32 nibbles: w = d * (q - zero), or d * q + m.
void UnpackSimple(BlockFields fields, bool has_min, bool has_fifth_bit, UnpackedBlock& block) {
  block.num_runs = 1;
  block.scale[0] = fields.Half();
  block.offset[0] = has_min ? fields.Half() : kNoOffset;
  const uint8_t* fifth = has_fifth_bit ? fields.Bytes(4) : nullptr;
  UnpackNibbles(fields.Bytes(16), 16, block.q);
  const int zero = has_min ? 0 : has_fifth_bit ? 16 : 8;
  for (int idx = 0; idx < 32; ++idx) {
    const int high = fifth == nullptr ? 0 : (fifth[idx / 8] >> idx % 8 & 1) << 4;
    block.q[idx] = static_cast<int8_t>((block.q[idx] | high) - zero);
  }
}

// d, 32 values of 8 bits.
void UnpackQ8(BlockFields fields, UnpackedBlock& block) {
  block.num_runs = 1;
  block.scale[0] = fields.Half();
  block.offset[0] = kNoOffset;
  std::memcpy(block.q, fields.Bytes(32), 32);
}

// d, dmin, 12 bytes of scales and minima, [256 fifth bits,] 256 nibbles in pairs of runs. The fifth
// bits of run r are bit r of 32 bytes.
void UnpackKBlock(BlockFields fields, bool has_fifth_bit, UnpackedBlock& block) {
  const float d = fields.Half();
  const float dmin = fields.Half();
  const KScales scales = UnpackKScales(fields.Bytes(12));
  const uint8_t* fifth = has_fifth_bit ? fields.Bytes(32) : nullptr;
  const uint8_t* nibbles = fields.Bytes(128);
  block.num_runs = 8;
  for (int run = 0; run < 8; ++run) {
    block.scale[run] = d * static_cast<float>(scales.scale[run]);
    block.offset[run] = -(dmin * static_cast<float>(scales.min[run]));
    for (int idx = 0; idx < 32; ++idx) {
      const int low = nibbles[run / 2 * 32 + idx] >> run % 2 * 4 & 15;
      const int high = fifth == nullptr ? 0 : (fifth[idx] >> run & 1) << 4;
      block.q[run * 32 + idx] = static_cast<int8_t>(low | high);
    }
  }
}

// Low 4 bits of 256 values, their high 2 bits, 16 signed scales, d. A half of 128 values is four
// quarters of 32: nibbles 0..3 of 64 bytes in the order low, low, high, high; bits 2c, 2c + 1 of 32
// bytes for quarter c.
void UnpackQ6K(BlockFields fields, UnpackedBlock& block) {
  const uint8_t* low = fields.Bytes(128);
  const uint8_t* high = fields.Bytes(64);
  const uint8_t* scales = fields.Bytes(16);
  const float d = fields.Half();
  block.num_runs = 16;
  for (int run = 0; run < 16; ++run) {
    block.scale[run] = d * static_cast<float>(static_cast<int8_t>(scales[run]));
    block.offset[run] = kNoOffset;
  }
  for (int idx = 0; idx < 256; ++idx) {
    const int half = idx / 128;
    const int quarter = idx / 32 % 4;
    const int nibble = low[half * 64 + idx % 64] >> quarter / 2 * 4 & 15;
    const int top = high[half * 32 + idx % 32] >> quarter * 2 & 3;
    block.q[idx] = static_cast<int8_t>((nibble | top << 4) - 32);
  }
}

// d, 32 codes.
void UnpackIq4Nl(BlockFields fields, UnpackedBlock& block) {
  block.num_runs = 1;
  block.scale[0] = fields.Half();
  block.offset[0] = kNoOffset;
  UnpackNibbles(fields.Bytes(16), 16, block.q);
  for (int idx = 0; idx < 32; ++idx) block.q[idx] = kIq4Values[block.q[idx]];
}

// d, high 2 bits of 8 scales, low 4 bits of them, 256 codes.
void UnpackIq4Xs(BlockFields fields, UnpackedBlock& block) {
  const float d = fields.Half();
  const uint16_t high = fields.Word();
  const uint8_t* low = fields.Bytes(4);
  block.num_runs = 8;
  for (int run = 0; run < 8; ++run) {
    const int scale = (low[run / 2] >> run % 2 * 4 & 15) | (high >> 2 * run & 3) << 4;
    block.scale[run] = d * static_cast<float>(scale - 32);
    block.offset[run] = kNoOffset;
    UnpackNibbles(fields.Bytes(16), 16, block.q + run * 32);
  }
  for (int8_t& q : block.q) q = kIq4Values[q];
}

}  // namespace

KScales UnpackKScales(const uint8_t* bytes) {
  KScales scales;
  for (int idx = 0; idx < 4; ++idx) {
    scales.scale[idx] = bytes[idx] & 63;
    scales.min[idx] = bytes[idx + 4] & 63;
    scales.scale[idx + 4] = static_cast<uint8_t>((bytes[idx + 8] & 15) | (bytes[idx] >> 2 & 0x30));
    scales.min[idx + 4] = static_cast<uint8_t>(bytes[idx + 8] >> 4 | (bytes[idx + 4] >> 2 & 0x30));
  }
  return scales;
}

UnpackedBlock UnpackBlock(DType dtype, const std::byte* block) {
  UnpackedBlock unpacked;
  const BlockFields fields(block);
  switch (dtype) {
    case DType::kQ4_0:
      UnpackSimple(fields, /*has_min=*/false, /*has_fifth_bit=*/false, unpacked);
      break;
    case DType::kQ4_1:
      UnpackSimple(fields, /*has_min=*/true, /*has_fifth_bit=*/false, unpacked);
      break;
    case DType::kQ5_0:
      UnpackSimple(fields, /*has_min=*/false, /*has_fifth_bit=*/true, unpacked);
      break;
    case DType::kQ5_1:
      UnpackSimple(fields, /*has_min=*/true, /*has_fifth_bit=*/true, unpacked);
      break;
    case DType::kQ8_0:
      UnpackQ8(fields, unpacked);
      break;
    case DType::kQ4_K:
      UnpackKBlock(fields, /*has_fifth_bit=*/false, unpacked);
      break;
    case DType::kQ5_K:
      UnpackKBlock(fields, /*has_fifth_bit=*/true, unpacked);
      break;
    case DType::kQ6_K:
      UnpackQ6K(fields, unpacked);
      break;
    case DType::kIQ4_NL:
      UnpackIq4Nl(fields, unpacked);
      break;
    case DType::kIQ4_XS:
      UnpackIq4Xs(fields, unpacked);
      break;
    default:
      CHECK(false) << DTypeName(dtype) << " has no blocks";
  }
  return unpacked;
}

void Dequantise(DType dtype, const void* blocks, int64_t num_elements, float* out) {
  const DTypeBlock shape = BlockOf(dtype);
  CHECK_EQ(num_elements % shape.elements, 0) << DTypeName(dtype);
  const auto* next = static_cast<const std::byte*>(blocks);
  for (int64_t begin = 0; begin < num_elements; begin += shape.elements) {
    const UnpackedBlock block = UnpackBlock(dtype, next);
    const int run_len = shape.elements / block.num_runs;
    for (int idx = 0; idx < shape.elements; ++idx) {
      const int run = idx / run_len;
      out[begin + idx] = block.scale[run] * static_cast<float>(block.q[idx]) + block.offset[run];
    }
    next += shape.bytes;
  }
}

}  // namespace lapidary
