// One measurement of a kernel, and how it is shown.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/json.h"
#include "tensor/weight_format.h"

namespace lapidary {

// What an H200 copies and multiplies (bf16) at best, as measured.
inline constexpr double kFloorBytesPerSecond = 4.2e12;
inline constexpr double kFloorFlopsPerSecond = 790e12;

// Enough of an attention case for another implementation to run the same.
struct AttentionShape {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // 0: none
  int sequences = 1;
  int queries = 1;  // of each sequence
  int prefix = 0;   // tokens before them
};

struct KernelRow {
  std::string name = {};     // "e2b gate_up"
  std::string shape = {};    // "1536x12288"
  std::string variant = {};  // what differs from the default; empty for the default
  int rows = 0;
  double us = 0;
  double bytes = 0;  // that must move
  double flops = 0;
  std::string baseline = {};  // what baseline_us is of
  double baseline_us = 0;     // 0: nothing to compare with
  std::optional<AttentionShape> attention = {};

  double gbps() const { return bytes / us * 1e-3; }
  double tflops() const { return flops / us * 1e-6; }
  // The least time it can take: the larger of bytes and operations at the rates above.
  double floor_us() const;
  double floor_share() const { return floor_us() / us; }
  // Above 1: faster than the baseline.
  double ratio() const { return baseline_us / us; }
  // Name, shape, variant and rows: what tells rows apart.
  std::string label() const;
};

// A product of [rows, in_dim] in bf16 and [in_dim, out_dim] in `weights` that took `us`.
KernelRow MakeProductRow(std::string name, std::string variant, int rows, int in_dim, int out_dim,
                         double us, const WeightFormat& weights = {});

nlohmann::ordered_json ToJson(std::span<const KernelRow> rows);

// A table for a terminal, a line per row.
std::string FormatKernelRows(std::span<const KernelRow> rows);

}  // namespace lapidary
