// cuBLASLt algorithms measured to be faster than what its heuristic takes, by shape.
//
// The table (gemm_algorithms.inc) is made by `lapidary bench kernels --write-algorithms` on an
// H200 and compiled in: nothing is profiled at start. An algorithm is opaque and only means
// something to the version of cuBLASLt that gave it.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lapidary::cuda {

// y [rows, out_dim] = x [rows, in_dim] times a weight [out_dim, in_dim], all bf16 or y in f32.
struct GemmShape {
  int out_dim = 0;
  int in_dim = 0;
  int rows = 0;  // the upper end of a GemmRowBucket
  bool f32_output = false;

  auto operator<=>(const GemmShape&) const = default;
};

// Algorithms are chosen for the upper end of a bucket of row counts; every padded size of a step
// that decodes, or verifies three drafts of up to 128 sequences, is such an end. Few tiles of rows
// have to fit exactly: one for 512 rows, of 320, wastes a third of itself on 400.
int GemmRowBucket(int rows);

struct GemmAlgorithm {
  GemmShape shape;
  std::array<uint64_t, 8> words{};  // a cublasLtMatmulAlgo_t
};

// The version of cuBLASLt (cublasLtGetVersion) whose algorithms the table holds.
size_t GemmTableVersion();

// All of the table, by ascending shape.
const std::vector<GemmAlgorithm>& GemmTable();

// Null where the table has none.
const GemmAlgorithm* FindGemmAlgorithm(const GemmShape& shape);

}  // namespace lapidary::cuda
