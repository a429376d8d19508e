// How a matrix of weights is stored, in a file or in a device's memory: a value that says what its
// bytes mean. Formats are rows of a table, not types: who plans memory, checks support, repacks or
// multiplies reads their fields.
//
// Every weight has a code; weights of a group share a scale, and an offset where codes have one:
//
//   w = scale * (code - zero)                      OffsetType::kNone, kMiddle, kZeroPoint
//   w = scale * code + minimum                     OffsetType::kMinimum
//
// in f32, each operation rounded once. DecodeRow (decode.h) is that as code, for every format.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace lapidary {

// What stands for one weight.
enum class CodeType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kE4M3,  // float8.h
  kE2M1,  // sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6
  kIq4,   // one of 16 values of 8 bits (kIq4Values)
  kU4,
  kU5,
  kU6,
  kU8,
  kS8,
};
int CodeBits(CodeType code);

enum class ScaleType : uint8_t {
  kNone,
  kF32,
  kF16,
  kBF16,
  kF16TimesInteger,   // of a block that shares the half among several groups
  kE4M3TimesTensors,  // times an f32 of the whole tensor
  kE4M3OverTensors,   // divided by one
};

enum class OffsetType : uint8_t {
  kNone,       // code 0 is 0
  kMiddle,     // half of what the bits can say is 0: 8 of kU4, 128 of kU8
  kZeroPoint,  // a code of each group is 0
  kMinimum,    // of each group, in the type of the scale, is added (in tiles, of 32 columns)
};

enum class WeightLayout : uint8_t {
  kRowMajor,  // codes row by row, scales and offsets in planes of their own
  kBlocks,    // of GGUF: rows of blocks with codes, scales and offsets (block_formats.h)
  kPanels,    // 16 rows side by side for the CPU's products of integers (panels.h)
  kTiles,     // 8 rows x 64 columns for the GPU's matrix instructions (weight_tiles.h)
};

// How many weights share a scale. 0: as many as there are.
struct WeightGroup {
  int rows = 0;
  int cols = 0;

  bool operator==(const WeightGroup&) const = default;
};

struct WeightFormat {
  CodeType code = CodeType::kBF16;
  ScaleType scale = ScaleType::kNone;
  OffsetType offset = OffsetType::kNone;
  WeightLayout layout = WeightLayout::kRowMajor;
  // What `data` is an array of: values, blocks, or what codes are packed into (rows are whole
  // units).
  DType unit = DType::kBF16;
  WeightGroup group{};
  // kE4M3TimesTensors, kE4M3OverTensors: rows that share an f32. 0: as many as there are.
  int tensor_rows = 0;

  bool operator==(const WeightFormat&) const = default;

  bool has_scales() const { return scale != ScaleType::kNone; }
  // Whether `unit` says it all: F32, F16, BF16, blocks and panels.
  bool has_dtype() const {
    return is_plain() || layout == WeightLayout::kBlocks || layout == WeightLayout::kPanels;
  }
  // A value of its own for each weight.
  bool is_plain() const { return layout == WeightLayout::kRowMajor && !has_scales(); }
  // Whether scales lie in a plane of their own (MatrixRef::scales).
  bool has_scale_plane() const;
  // Codes of 8 or 4 bits that are floats themselves, row by row: FP8 and NVFP4 of checkpoints.
  bool is_float_codes() const {
    return layout == WeightLayout::kRowMajor &&
           (code == CodeType::kE4M3 || code == CodeType::kE2M1);
  }
};

// Of F32, F16, BF16, a block or a panel type.
WeightFormat FormatOf(DType dtype);

// Codes and scales of 4 or 8 bits, row-major, as checkpoints of safetensors have them.
WeightFormat RowMajorFormat(CodeType code, WeightGroup group, ScaleType scale,
                            OffsetType offset = OffsetType::kNone);

// For the GPU: codes of 4, 6 or 8 bits in tiles (weight_tiles.h), with the scales and offsets of a
// tile behind its codes. A group is 16 or 32 columns of one row.
inline constexpr int kTileRows = 8;
inline constexpr int kTileCols = 64;
WeightFormat TileFormat(CodeType code, int group_cols, ScaleType scale, OffsetType offset);

// "BF16", "Q4_K", "PANEL4", or what it is made of: "U4 BF16/1x32 zero points"; of tiles "W4
// F16/32", "W4M F16*INT/32" with minima, "W4Z BF16/32" with zero points, "F8 F32/32".
std::string FormatName(const WeightFormat& format);

// Bytes of a matrix. A row of blocks or panels must be whole blocks.
struct PlaneBytes {
  int64_t data = 0;  // all of it, but for formats that keep scales and offsets apart
  int64_t scales = 0;
  int64_t offsets = 0;
  int64_t tensor_scale = 0;

  int64_t total() const { return data + scales + offsets + tensor_scale; }
};
PlaneBytes BytesOf(const WeightFormat& format, int64_t rows, int64_t cols);

// Bytes from one row's data to the next one's; of panels and tiles, for whole ones of them.
int64_t RowBytes(const WeightFormat& format, int64_t cols);

// Whether rows of so many columns can be in the format.
bool FitsColumns(const WeightFormat& format, int64_t cols);

// The plane of scales of a matrix, [rows, cols] of them.
struct ScaleGrid {
  int64_t rows = 0;
  int64_t cols = 0;
};
ScaleGrid ScaleGridOf(const WeightFormat& format, int64_t rows, int64_t cols);
// Bytes of one scale, or of one minimum beside it.
int ScaleBytes(ScaleType scale);

// The panels that hold what a block type holds; for the types of IsBlockDType only.
DType PanelDType(DType block);

}  // namespace lapidary
