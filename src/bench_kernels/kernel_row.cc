#include "bench_kernels/kernel_row.h"

#include <fmt/format.h>

#include <algorithm>

namespace lapidary {

double KernelRow::floor_us() const {
  return 1e6 * std::max(bytes / kFloorBytesPerSecond, flops / kFloorFlopsPerSecond);
}

std::string KernelRow::label() const {
  return fmt::format("{} {}{}{} rows {}", name, shape, variant.empty() ? "" : " ", variant, rows);
}

KernelRow MakeProductRow(std::string name, std::string variant, int rows, int in_dim, int out_dim,
                         double us, const WeightFormat& weights) {
  constexpr double kValueBytes = 2.0;  // bf16
  const double in = in_dim;
  const double out = out_dim;
  return {.name = std::move(name),
          .shape = fmt::format("{}x{}", in_dim, out_dim),
          .variant = std::move(variant),
          .rows = rows,
          .us = us,
          .bytes = static_cast<double>(BytesOf(weights, out_dim, in_dim).total()) +
                   kValueBytes * rows * (in + out),
          .flops = 2.0 * rows * in * out};
}

nlohmann::ordered_json ToJson(std::span<const KernelRow> rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const KernelRow& row : rows) {
    nlohmann::ordered_json entry = {{"name", row.name},
                                    {"shape", row.shape},
                                    {"variant", row.variant},
                                    {"rows", row.rows},
                                    {"us", row.us},
                                    {"tflops", row.tflops()},
                                    {"gbps", row.gbps()},
                                    {"floor_us", row.floor_us()},
                                    {"floor_share", row.floor_share()}};
    if (row.baseline_us > 0) {
      entry["baseline"] = row.baseline;
      entry["baseline_us"] = row.baseline_us;
      entry["ratio"] = row.ratio();
    }
    if (row.attention) {
      const AttentionShape& shape = *row.attention;
      entry["attention"] = {{"num_heads", shape.num_heads}, {"num_kv_heads", shape.num_kv_heads},
                            {"head_dim", shape.head_dim},   {"window", shape.window},
                            {"sequences", shape.sequences}, {"queries", shape.queries},
                            {"prefix", shape.prefix}};
    }
    list.push_back(std::move(entry));
  }
  return list;
}

std::string FormatKernelRows(std::span<const KernelRow> rows) {
  size_t name_width = 6;
  size_t shape_width = 5;
  for (const KernelRow& row : rows) {
    name_width = std::max(name_width, row.name.size());
    shape_width = std::max(shape_width,
                           row.shape.size() + (row.variant.empty() ? 0 : 1 + row.variant.size()));
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  {:>5} {:>9} {:>8} {:>7} {:>6}  {}\n", "kernel",
                                 name_width, "shape", shape_width, "rows", "us", "TFLOP/s", "GB/s",
                                 "floor", "times the baseline");
  for (const KernelRow& row : rows) {
    const std::string shape = row.shape + (row.variant.empty() ? "" : " ") + row.variant;
    text += fmt::format("{:<{}}  {:<{}}  {:>5} {:>9.2f} {:>8.1f} {:>7.0f} {:>5.0f}%", row.name,
                        name_width, shape, shape_width, row.rows, row.us, row.tflops(), row.gbps(),
                        100 * row.floor_share());
    if (row.baseline_us > 0) text += fmt::format("  {:.2f} {}", row.ratio(), row.baseline);
    text += "\n";
  }
  return text;
}

}  // namespace lapidary
