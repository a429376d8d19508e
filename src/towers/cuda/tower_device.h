// What all encoders on a GPU share: a stream, matrix products, and the place where weights lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "device/device_info.h"
#include "device/device_memory.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear/gemm_lt.h"
#include "ops/cuda/towers/tower_rows.h"
#include "towers/tower_tensors.h"

namespace lapidary::cuda {

struct DeviceMatrix {
  const bf16* data = nullptr;  // [rows, cols]
  int rows = 0;
  int cols = 0;
};

// A clipped linear whose inputs are clamped by whoever makes them, and its outputs by whoever reads
// them.
struct DeviceLinear {
  DeviceMatrix weight;
  Bounds in;
  Bounds out;
};

// Linears of the same input and as many outputs each, one product: of one matrix where their inputs
// have the same bounds, else a batch of as many.
struct DeviceLinearGroup {
  DeviceMatrix weight;      // [linears * part_rows, cols]
  std::vector<Bounds> in;   // one, or one of each linear
  std::vector<Bounds> out;  // of each linear
  int part_rows = 0;        // outputs of a linear

  bool is_fused() const { return in.size() == 1; }
  // Of a product of `rows` rows: where linear `part` lies in it, and from row to row.
  const bf16* Part(const bf16* product, int part, int rows) const {
    return product + int64_t{part} * part_rows * (is_fused() ? 1 : rows);
  }
  int64_t stride() const {
    return is_fused() ? static_cast<int64_t>(out.size()) * part_rows : part_rows;
  }
};

class TowerDevice {
 public:
  explicit TowerDevice(int gpu_ordinal);

  const LaunchContext& context() const { return context_; }
  cudaStream_t stream() const { return stream_.get(); }

  // Copies of a checkpoint's tensors. Matrices are rounded to bf16 and filled up with zeros to so
  // many rows and columns, where those are more than they have.
  DeviceMatrix UploadMatrix(const MatrixRef& matrix, int rows = 0, int cols = 0);
  const float* UploadVector(const std::vector<float>& values);
  template <typename T>
  const T* UploadValues(const std::vector<T>& values) {
    return static_cast<const T*>(Upload(values.data(), values.size() * sizeof(T)));
  }
  DeviceLinear UploadLinear(const ClippedMatrix& matrix, int rows = 0, int cols = 0);
  DeviceLinearGroup UploadGroup(const std::vector<ClippedMatrix>& matrices, int part_rows = 0);

  // y = x W^T; bf16, or f32.
  void Multiply(const DeviceMatrix& weight, const bf16* x, int rows, bf16* y);
  void Multiply(const DeviceMatrix& weight, const bf16* x, int rows, float* y);
  // Updates rows, then multiplies what became of them (update.x: one of each of the group's inputs)
  // with the group.
  void UpdateAndMultiply(UpdateRowsCall update, const DeviceLinearGroup& group, bf16* y);

 private:
  const void* Upload(const void* data, size_t num_bytes);

  const DeviceInfo device_;
  Stream stream_;
  LaunchContext context_;
  GemmLt gemm_;
  std::vector<DeviceBuffer> slabs_;  // of weights
  int64_t slab_end_ = 0;             // of the last one
};

// Page-locked memory for what goes to the device in one piece, and its copy there.
class StagedArray {
 public:
  StagedArray() = default;
  StagedArray(int64_t num_bytes, const char* purpose)
      : host_(num_bytes, purpose), device_(num_bytes, purpose) {}

  // Room behind what there is already: to be filled here, and where that will be on the device.
  template <typename T>
  struct Place {
    T* host;
    const T* device;
  };
  template <typename T>
  Place<T> Reserve(int64_t count) {
    const int64_t at = ReserveBytes(count * static_cast<int64_t>(sizeof(T)));
    return {host_.As<T>(at), device_.As<T>(at)};
  }
  template <typename T>
  const T* Add(std::span<const T> values) {
    const Place<T> place = Reserve<T>(std::ssize(values));
    std::copy(values.begin(), values.end(), place.host);
    return place.device;
  }
  // Sends all of it.
  void Send(cudaStream_t stream);

 private:
  int64_t ReserveBytes(int64_t num_bytes);

  PinnedBuffer host_;
  DeviceBuffer device_;
  int64_t end_ = 0;
};

}  // namespace lapidary::cuda
